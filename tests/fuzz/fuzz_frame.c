/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fuzz the frame decoder: any stream, cut into any pieces, gives the same frames and the same end
 *
 * Input: 2 bytes that decide the pieces, then the stream.
 *
 * Thread: one      Owns: its decoders      Locks: none
 */
#include <string.h>

#include "proto/base.h"
#include "proto/frame.h"
#include "tests/fuzz/fuzz.h"

/* Small, so that short inputs hold whole frames on both sides of it. */
#define MAX_BODY 512

/* What a stream decoded to: compared between two ways to cut it. */
struct outcome {
	unsigned int frames;
	uint64_t hash;
	int end;
};

static void outcome_add(struct outcome *o, const void *data, size_t size)
{
	const uint8_t *bytes = data;

	for (size_t i = 0; i < size; i++) {
		o->hash = (o->hash ^ bytes[i]) * 0x100000001b3ull;
	}
}

/* Feeds one piece, in a block of its exact size. */
static int feed(struct frame_decoder *d, const uint8_t *data, size_t size, struct outcome *o)
{
	cleanup_free uint8_t *piece = malloc(size ? size : 1);
	struct frame *frame;
	size_t off = 0, used;
	int r;

	fuzz_check(piece);
	if (size > 0) {
		memcpy(piece, data, size);
	}
	while ((r = frame_decode(d, piece + off, size - off, &used, &frame)) == 0) {
		fuzz_check(used <= size - off);
		off += used;
		fuzz_check(frame->type != 0 && frame->nfds <= LIMIT_FRAME_FDS);
		fuzz_check(frame->length <= d->max_body);
		outcome_add(o, &frame->type, sizeof(frame->type));
		outcome_add(o, &frame->nfds, sizeof(frame->nfds));
		outcome_add(o, &frame->serial, sizeof(frame->serial));
		outcome_add(o, &frame->length, sizeof(frame->length));
		outcome_add(o, frame->body, frame->length);
		o->frames++;
	}
	fuzz_check(used <= size - off);
	fuzz_check(r == FRAME_E_TOO_BIG || r == FRAME_E_INVALID || r == FRAME_E_MORE);
	fuzz_check(r != FRAME_E_MORE || off + used == size);
	return r;
}

static struct outcome decode(const uint8_t *data, size_t size, size_t first, size_t step)
{
	struct outcome o = {.end = FRAME_E_MORE};
	struct frame_decoder d;
	size_t off = 0, n = first;

	frame_decoder_init(&d);
	d.max_body = MAX_BODY;
	do {
		n = MIN(n, size - off);
		o.end = feed(&d, data + off, n, &o);
		off += n;
		n = step;
	} while (o.end == FRAME_E_MORE && off < size);
	frame_decoder_deinit(&d);
	return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct outcome whole, pieces;

	if (size < 2) {
		return 0;
	}
	whole = decode(data + 2, size - 2, size - 2, 1);
	pieces = decode(data + 2, size - 2, data[0], (size_t)data[1] + 1);
	fuzz_check(whole.frames == pieces.frames);
	fuzz_check(whole.hash == pieces.hash);
	fuzz_check(whole.end == pieces.end);
	return 0;
}
