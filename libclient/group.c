/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Group: implementation
 *
 * A group must not block half-way for want of window, since the other ranks may be waiting for
 * its second half: what can never be in flight together is refused when it is added.
 *
 * Thread: see group.h      Owns: see group.h      Locks: the client's lock, inside
 */
#include "libclient/group.h"

#include <stdlib.h>
#include <string.h>

#include "libclient/client.h"
#include "libclient/comm.h"
#include "libclient/error.h"
#include "libclient/post.h"
#include "libclient/roceclient.h"
#include "proto/base.h"

struct group {
	struct roce_client *client;
	unsigned int fork_gen;
	unsigned int depth;
	struct op *first;
	struct op **last;
	unsigned int n;
	int status; /* of the first call that failed */
	char text[LIMIT_ERROR_TEXT];
};

static _Thread_local struct group *open_group;

struct group *group_current(void)
{
	if (open_group && open_group->fork_gen != fork_generation()) {
		/* Left open by the parent; its operations are the parent's. */
		open_group = NULL;
	}
	return open_group;
}

int group_admit(struct group *group, struct roce_comm *comm, unsigned int kind)
{
	bool p2p = coll_kind_is_p2p(kind);
	unsigned int limit = p2p ? LIMIT_P2P_WINDOW : LIMIT_COMM_WINDOW;
	unsigned int n = 0;

	if (comm->client != group->client) {
		return error_set(ROCE_ERR_INVALID,
				 "%s: the communicator belongs to another client than the open "
				 "group: end the group first",
				 coll_kind_name(kind));
	}
	if (group->n >= LIMIT_TICKETS) {
		return error_set(ROCE_ERR_QUOTA,
				 "%s: the group holds %u operations, the limit is %u: split it",
				 coll_kind_name(kind), group->n, LIMIT_TICKETS);
	}
	if (group->n < limit) {
		return 0;
	}
	for (const struct op *op = group->first; op; op = op->next) {
		n += op->comm == comm && coll_kind_is_p2p(op->desc.kind) == p2p;
	}
	if (n >= limit) {
		return error_set(ROCE_ERR_QUOTA,
				 "%s: the group holds %u %s of this communicator, the limit is "
				 "%u: split it",
				 coll_kind_name(kind), n,
				 p2p ? "sends and receives" : "collectives", limit);
	}
	return 0;
}

int group_add(struct group *group, const struct op *op)
{
	struct op *copy = malloc(sizeof(*copy));

	if (!copy) {
		return error_set(ROCE_ERR_NO_MEMORY, "no memory for an operation of a group");
	}
	*copy = *op;
	copy->next = NULL;
	*group->last = copy;
	group->last = &copy->next;
	group->n++;
	return 0;
}

void group_failed(struct group *group, int status)
{
	if (group && group->status == 0) {
		group->status = status;
		error_copy(group->text, error_last());
	}
}

int roce_group_start(struct roce_client *client)
{
	struct group *group = group_current();
	int r;

	r = client_enter(client);
	if (r != 0) {
		return r;
	}
	if (group && group->client != client) {
		return error_set(ROCE_ERR_INVALID,
				 "roce_group_start: this thread has a group of another client "
				 "open: end it first");
	}
	if (!group) {
		group = calloc(1, sizeof(*group));
		if (!group) {
			return error_set(ROCE_ERR_NO_MEMORY, "no memory for a group");
		}
		group->client = client;
		group->fork_gen = fork_generation();
		group->last = &group->first;
		open_group = group;
	}
	group->depth++;
	return ROCE_OK;
}

/* Ends the requests of a group that is not posted; the blocking ones vanish. */
static void group_drop(struct group *group)
{
	for (struct op *op = group->first, *next; op; op = next) {
		next = op->next;
		if (op->blocking || op->request->detached) {
			op_deinit(op);
		} else {
			op_drop(op);
			copy_list_deinit(&op->in);
			copy_list_deinit(&op->out);
			copy_list_deinit(&op->request->out);
			op->request->comm = NULL;
			op->request->status = group->status;
			/* release: pairs with the acquire in request_ready() */
			atomic_store_explicit(&op->request->state, REQUEST_DONE,
					      memory_order_release);
		}
		free(op);
	}
	group->first = NULL;
}

/* Waits for the blocking calls of a posted group. Return: their first error. */
static int group_wait(struct group *group)
{
	char text[LIMIT_ERROR_TEXT] = "";
	int first = ROCE_OK;

	for (struct op *op = group->first, *next; op; op = next) {
		int r = ROCE_OK;

		next = op->next;
		if (op->blocking) {
			r = roce_wait(&op->request, -1);
		}
		if (r != ROCE_OK && first == ROCE_OK) {
			first = r;
			error_copy(text, error_last());
		}
		free(op);
	}
	group->first = NULL;
	return first != ROCE_OK ? error_set(first, "%s", text) : ROCE_OK;
}

void group_abandon(const struct roce_client *client)
{
	struct group *group = group_current();

	if (group && group->client == client) {
		open_group = NULL;
		group->status = ROCE_ERR_ABORTED;
		group_drop(group);
		free(group);
	}
}

int roce_group_end(struct roce_client *client)
{
	cleanup_free struct group *group = NULL;
	int r;

	r = client_enter(client);
	if (r != 0) {
		return r;
	}
	if (!group_current() || open_group->client != client) {
		return error_set(ROCE_ERR_INVALID,
				 "roce_group_end: this thread has no group of this client open");
	}
	if (--open_group->depth > 0) {
		return ROCE_OK;
	}
	group = take_ptr(open_group);
	for (const struct op *op = group->first; op && group->status == 0; op = op->next) {
		r = comm_failed_error(op->comm);
		if (r != 0) {
			group_failed(group, r);
		}
	}
	if (group->status != 0) {
		group_drop(group);
		return error_set(group->status, "the group was not posted: %s", group->text);
	}
	r = group->first ? post_ops(client, group->first) : 0;
	if (r != 0) {
		error_copy(group->text, error_last());
		group_wait(group);
		return error_set(r, "%s", group->text);
	}
	return group_wait(group);
}
