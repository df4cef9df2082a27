/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Posts: one rank's part of an operation - its memory, its conflicts, its completion
 *
 * Thread: progress      Owns: nothing      Locks: none
 */
#include "engine/comm.h"

#include "engine/progress.h"

static bool ranges_overlap(const uint8_t *a, uint64_t a_len, const uint8_t *b, uint64_t b_len)
{
	return a_len && b_len && a < b + b_len && b < a + a_len;
}

/**
 * post_conflicts() - does an earlier, incomplete operation of this rank touch the same memory?
 *
 * Two readers do not conflict. Only what stands before @post in the rank's posting order counts, so
 * waiting for conflicts cannot form a cycle.
 */
bool post_conflicts(const struct engine_rank *rank, const struct post *post)
{
	list_for_each (e, &rank->posts) {
		const struct post *o = container_of(e, struct post, link);

		if (o == post) {
			break;
		}
		if (ranges_overlap(o->out, o->out_len, post->in, post->in_len) ||
		    ranges_overlap(o->out, o->out_len, post->out, post->out_len) ||
		    ranges_overlap(o->in, o->in_len, post->out, post->out_len)) {
			return true;
		}
	}
	return false;
}

/* Tells the client, once. */
void post_complete(struct engine_comm *c, uint32_t local, struct post *post, enum status status,
		   uint64_t bytes)
{
	if (!post->posted || post->completed) {
		return;
	}
	post->completed = true;
	list_remove(&post->link);
	client_ring_complete(c->ranks[local].session, post->ticket, post->generation, status,
			     bytes);
}

/* Gives the memory back; after this no transport may touch it. */
void post_release(struct post *post)
{
	struct engine_region *in = post->in_region;
	struct engine_region *out = post->out_region;
	struct engine_region *args = post->args_region;

	post->in_region = NULL;
	post->out_region = NULL;
	post->args_region = NULL;
	post->posted = false;
	engine_region_release(in);
	engine_region_release(out);
	engine_region_release(args);
}
