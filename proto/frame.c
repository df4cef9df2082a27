/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Frame: the implementation
 *
 * The decoder's state is `have` and `frame.type`: a type other than 0 says that the header is whole
 * and was found valid (0 is never valid). A stream that broke the rules stays broken: the header is
 * kept, and every later call finds the same fault again.
 *
 * Thread: any, one user at a time      Owns: the body being assembled      Locks: none
 * See: PROTOCOL.md §3
 */
#include "proto/frame.h"

#include <protobuf-c/protobuf-c.h>
#include <string.h>

#include "proto/base.h"

static uint16_t get_u16(const uint8_t *p)
{
	return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t get_u32(const uint8_t *p)
{
	return (uint32_t)get_u16(p) | (uint32_t)get_u16(p + 2) << 16;
}

static uint64_t get_u64(const uint8_t *p)
{
	return (uint64_t)get_u32(p) | (uint64_t)get_u32(p + 4) << 32;
}

static void put_le(uint8_t *p, uint64_t value, unsigned int bytes)
{
	for (unsigned int i = 0; i < bytes; i++) {
		p[i] = (uint8_t)(value >> (8 * i));
	}
}

/**
 * frame_decoder_init() - start at a frame boundary
 * @d:  uninitialised
 */
void frame_decoder_init(struct frame_decoder *d)
{
	*d = (struct frame_decoder){.max_body = LIMIT_FRAME_BODY};
}

static void decoder_reset(struct frame_decoder *d)
{
	free(d->frame.body);
	d->frame = (struct frame){0};
	d->have = 0;
}

/**
 * frame_decoder_deinit() - free the body of the last or the unfinished frame
 * @d:  initialised; may be initialised again afterwards
 */
void frame_decoder_deinit(struct frame_decoder *d)
{
	decoder_reset(d);
}

/* Takes bytes up to @want of the whole frame. Return: bytes taken. */
static size_t decoder_fill(struct frame_decoder *d, uint8_t *dest, size_t want, const uint8_t *data,
			   size_t size)
{
	size_t n = MIN(want - d->have, size);

	if (n > 0) {
		memcpy(dest, data, n);
		d->have += n;
	}
	return n;
}

/* Checks a whole header and allocates the body. Sets frame.type only when all is well. */
static int decoder_open(struct frame_decoder *d)
{
	const uint8_t *h = d->header;
	uint32_t length = get_u32(h);
	uint16_t type = get_u16(h + 4);
	uint8_t *body = NULL;

	if (type == 0 || h[6] > LIMIT_FRAME_FDS || h[7] != 0) {
		return FRAME_E_INVALID;
	}
	if (length > LIMIT_PEER_BODY || length > d->max_body) {
		return FRAME_E_TOO_BIG;
	}
	if (length > 0) {
		body = malloc(length);
		if (!body) {
			return err_origin(-ENOMEM);
		}
	}
	d->frame = (struct frame){
		.type = type,
		.nfds = h[6],
		.serial = get_u64(h + 8),
		.length = length,
		.body = body,
	};
	return 0;
}

/* See frame.h. */
int frame_decode(struct frame_decoder *d, const void *data, size_t size, size_t *ret_used,
		 struct frame **ret_frame)
{
	const uint8_t *bytes = data;
	size_t used = 0, total;
	int r;

	*ret_used = 0;
	if (d->frame.type != 0 && d->have == FRAME_HEADER + (size_t)d->frame.length) {
		decoder_reset(d); /* that frame was handed out by the last call */
	}
	if (d->have < FRAME_HEADER) {
		used = decoder_fill(d, d->header + d->have, FRAME_HEADER, bytes, size);
		*ret_used = used;
		if (d->have < FRAME_HEADER) {
			return FRAME_E_MORE;
		}
	}
	if (d->frame.type == 0) {
		r = decoder_open(d);
		if (r != 0) {
			return err_trace(r);
		}
	}
	total = FRAME_HEADER + (size_t)d->frame.length;
	if (d->have < total) {
		used += decoder_fill(d, d->frame.body + (d->have - FRAME_HEADER), total,
				     size > used ? bytes + used : NULL, size - used);
		*ret_used = used;
		if (d->have < total) {
			return FRAME_E_MORE;
		}
	}
	*ret_frame = &d->frame;
	return 0;
}

/* See frame.h. */
void frame_encode_header(uint8_t *header, uint16_t type, uint8_t nfds, uint64_t serial,
			 uint32_t length)
{
	put_le(header, length, 4);
	put_le(header + 4, type, 2);
	header[6] = nfds;
	header[7] = 0;
	put_le(header + 8, serial, 8);
}

/* See frame.h. */
int frame_pack(uint16_t type, uint8_t nfds, uint64_t serial, const void *msg, uint8_t **ret,
	       size_t *ret_size)
{
	return frame_pack_limit(type, nfds, serial, msg, LIMIT_FRAME_BODY, ret, ret_size);
}

/* See frame.h. */
int frame_pack_limit(uint16_t type, uint8_t nfds, uint64_t serial, const void *msg, uint32_t limit,
		     uint8_t **ret, size_t *ret_size)
{
	const ProtobufCMessage *message = msg;
	size_t length = protobuf_c_message_get_packed_size(message);
	uint8_t *buf;

	if (length > limit) {
		return FRAME_E_TOO_BIG;
	}
	buf = malloc(FRAME_HEADER + length);
	if (!buf) {
		return err_origin(-ENOMEM);
	}
	frame_encode_header(buf, type, nfds, serial, (uint32_t)length);
	protobuf_c_message_pack(message, buf + FRAME_HEADER);
	*ret = buf;
	*ret_size = FRAME_HEADER + length;
	return 0;
}
