/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Frame: one message on a stream, and its incremental decoder
 *
 * A frame is a 16-byte header and a body of at most LIMIT_FRAME_BODY bytes (a packed protobuf
 * message). The same frames run over the client's Unix socket (where they may carry descriptors)
 * and inside TLS between daemons (where nfds is always 0).
 *
 *      0        4        6      7      8                16
 *      +--------+--------+------+------+----------------+------ - -
 *      | length | type   | nfds | zero | serial         | body
 *      +--------+--------+------+------+----------------+------ - -
 *      u32 LE   u16 LE   u8     u8     u64 LE             `length` bytes
 *
 * The decoder never reads beyond what it was given, allocates one body at a time and only after
 * the length was checked.
 *
 * Thread: any, one user at a time      Owns: the body being assembled      Locks: none
 */
#ifndef ROCECOMM_PROTO_FRAME_H
#define ROCECOMM_PROTO_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"

#define FRAME_HEADER 16

enum {
	FRAME_E_MORE = 1,    /* needs more bytes */
	FRAME_E_TOO_BIG = 2, /* length above the limit */
	FRAME_E_INVALID = 3, /* reserved byte set, nfds above LIMIT_FRAME_FDS, type 0 */
};

struct frame {
	uint16_t type;
	uint8_t nfds;
	uint64_t serial;
	uint32_t length;
	uint8_t *body; /* owned by the decoder until the next frame_decode() */
};

struct frame_decoder {
	uint8_t header[FRAME_HEADER];
	size_t have; /* bytes of header and body so far */
	struct frame frame;
	uint32_t max_body; /* LIMIT_FRAME_BODY at first; may be changed by the owner */
};

void frame_decoder_init(struct frame_decoder *d);
void frame_decoder_deinit(struct frame_decoder *d);

/**
 * frame_decode() - feed bytes until one frame is whole
 * @data, @size:   borrowed
 * @ret_used:      bytes consumed, also with FRAME_E_MORE
 * @ret_frame:     set on 0; its body is valid until the next call
 *
 * Return: 0, FRAME_E_MORE, FRAME_E_TOO_BIG, FRAME_E_INVALID (the stream is then lost), -ENOMEM.
 */
int frame_decode(struct frame_decoder *d, const void *data, size_t size, size_t *ret_used,
		 struct frame **ret_frame);

/* Writes a header. @header: FRAME_HEADER bytes. */
void frame_encode_header(uint8_t *header, uint16_t type, uint8_t nfds, uint64_t serial,
			 uint32_t length);

/*
 * Packs header and protobuf message into one new buffer. @msg: a ProtobufCMessage.
 * Return: 0, FRAME_E_TOO_BIG, -ENOMEM; *ret is to be freed by the caller.
 */
int frame_pack(uint16_t type, uint8_t nfds, uint64_t serial, const void *msg, uint8_t **ret,
	       size_t *ret_size);
/* The same with another limit than LIMIT_FRAME_BODY. */
int frame_pack_limit(uint16_t type, uint8_t nfds, uint64_t serial, const void *msg, uint32_t limit,
		     uint8_t **ret, size_t *ret_size);

#endif
