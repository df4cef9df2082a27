/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of frame: every way to cut a stream into pieces gives the same frames, and no broken
 * header is accepted
 *
 * Thread: any      Owns: its buffers      Locks: none
 */
#include <criterion/criterion.h>
#include <string.h>

#include "proto/base.h"
#include "proto/frame.h"
#include "rocecomm.pb-c.h"

#define MANY 5

static const uint32_t lengths[MANY] = {0, 1, 17, 300, 0};

static uint8_t pattern(unsigned int frame, size_t i)
{
	return (uint8_t)(frame * 31 + i * 7 + 1);
}

/* Writes MANY frames of different lengths. Return: bytes. */
static size_t write_many(uint8_t *buf)
{
	size_t n = 0;

	for (unsigned int f = 0; f < MANY; f++) {
		frame_encode_header(buf + n, (uint16_t)(0x100 + f), (uint8_t)f,
				    0x0102030405060708ull + f, lengths[f]);
		n += FRAME_HEADER;
		for (size_t i = 0; i < lengths[f]; i++) {
			buf[n++] = pattern(f, i);
		}
	}
	return n;
}

static void check_one(const struct frame *frame, unsigned int f)
{
	cr_assert_lt(f, MANY);
	cr_assert_eq(frame->type, 0x100 + f);
	cr_assert_eq(frame->nfds, f);
	cr_assert_eq(frame->serial, 0x0102030405060708ull + f);
	cr_assert_eq(frame->length, lengths[f]);
	for (size_t i = 0; i < lengths[f]; i++) {
		cr_assert_eq(frame->body[i], pattern(f, i), "frame %u byte %zu", f, i);
	}
}

/* Feeds one piece, each copied to a block of its exact size so that ASan sees any overrun. */
static void feed(struct frame_decoder *d, const uint8_t *data, size_t size, unsigned int *count)
{
	cleanup_free uint8_t *piece = malloc(size ? size : 1);
	struct frame *frame;
	size_t off = 0, used;
	int r;

	cr_assert_not_null(piece);
	if (size > 0) {
		memcpy(piece, data, size);
	}
	for (;;) {
		r = frame_decode(d, piece + off, size - off, &used, &frame);
		cr_assert_leq(used, size - off);
		off += used;
		if (r == FRAME_E_MORE) {
			cr_assert_eq(off, size, "asks for more with bytes left");
			return;
		}
		cr_assert_eq(r, 0);
		check_one(frame, *count);
		(*count)++;
	}
}

Test(frame, header_layout)
{
	static const uint8_t expect[FRAME_HEADER] = {0x04, 0x03, 0x02, 0x00, 0x06, 0x05,
						     0x07, 0x00, 0x18, 0x17, 0x16, 0x15,
						     0x14, 0x13, 0x12, 0x11};
	uint8_t header[FRAME_HEADER];

	memset(header, 0xff, sizeof(header));
	frame_encode_header(header, 0x0506, 7, 0x1112131415161718ull, 0x020304);
	cr_assert_arr_eq(header, expect, FRAME_HEADER);
}

Test(frame, byte_by_byte)
{
	uint8_t buf[1024];
	size_t size = write_many(buf);
	struct frame_decoder d;
	unsigned int count = 0;

	frame_decoder_init(&d);
	for (size_t i = 0; i < size; i++) {
		feed(&d, buf + i, 1, &count);
	}
	cr_assert_eq(count, MANY);
	frame_decoder_deinit(&d);
}

Test(frame, all_split_points)
{
	uint8_t buf[1024];
	size_t size = write_many(buf);

	for (size_t cut = 0; cut <= size; cut++) {
		struct frame_decoder d;
		unsigned int count = 0;

		frame_decoder_init(&d);
		feed(&d, buf, cut, &count);
		feed(&d, buf + cut, size - cut, &count);
		cr_assert_eq(count, MANY, "cut at %zu", cut);
		frame_decoder_deinit(&d);
	}
}

Test(frame, many_in_one_buffer)
{
	uint8_t buf[1024];
	struct frame_decoder d;
	unsigned int count = 0;

	frame_decoder_init(&d);
	feed(&d, buf, write_many(buf), &count);
	cr_assert_eq(count, MANY);
	frame_decoder_deinit(&d);
}

Test(frame, nothing_to_read)
{
	struct frame_decoder d;
	struct frame *frame;
	size_t used = 99;

	frame_decoder_init(&d);
	cr_assert_eq(frame_decode(&d, NULL, 0, &used, &frame), FRAME_E_MORE);
	cr_assert_eq(used, 0);
	frame_decoder_deinit(&d);
}

Test(frame, zero_length)
{
	uint8_t header[FRAME_HEADER];
	struct frame_decoder d;
	struct frame *frame = NULL;
	size_t used;

	frame_decoder_init(&d);
	frame_encode_header(header, 4, 0, 1, 0);
	for (unsigned int i = 0; i < 3; i++) {
		cr_assert_eq(frame_decode(&d, header, FRAME_HEADER, &used, &frame), 0);
		cr_assert_eq(used, FRAME_HEADER);
		cr_assert_eq(frame->type, 4);
		cr_assert_eq(frame->length, 0);
	}
	/* A frame that was handed out is not handed out again. */
	cr_assert_eq(frame_decode(&d, NULL, 0, &used, &frame), FRAME_E_MORE);
	frame_decoder_deinit(&d);
}

/* Decodes one bare header, and once more: a lost stream stays lost. */
static int decode_header(const uint8_t *header, uint32_t max_body)
{
	struct frame_decoder d;
	struct frame *frame = NULL;
	size_t used;
	int r;

	frame_decoder_init(&d);
	if (max_body) {
		d.max_body = max_body;
	}
	r = frame_decode(&d, header, FRAME_HEADER, &used, &frame);
	cr_assert_eq(used, FRAME_HEADER);
	if (r != FRAME_E_MORE) {
		cr_assert_eq(frame_decode(&d, header, FRAME_HEADER, &used, &frame), r);
		cr_assert_eq(used, 0);
	}
	cr_assert_null(frame);
	frame_decoder_deinit(&d);
	return r;
}

Test(frame, too_big)
{
	static const struct {
		uint32_t length;
		uint32_t max_body;
		int r;
	} cases[] = {
		{LIMIT_FRAME_BODY, 0, FRAME_E_MORE},
		{LIMIT_FRAME_BODY + 1, 0, FRAME_E_TOO_BIG},
		{UINT32_MAX, 0, FRAME_E_TOO_BIG},
		{100, 100, FRAME_E_MORE},
		{101, 100, FRAME_E_TOO_BIG},
		{LIMIT_PEER_BODY, UINT32_MAX, FRAME_E_MORE},
		{LIMIT_PEER_BODY + 1, UINT32_MAX, FRAME_E_TOO_BIG},
	};
	uint8_t header[FRAME_HEADER];

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		frame_encode_header(header, 1, 0, 0, cases[i].length);
		cr_assert_eq(decode_header(header, cases[i].max_body), cases[i].r, "case %zu", i);
	}
}

Test(frame, invalid)
{
	uint8_t header[FRAME_HEADER];

	frame_encode_header(header, 0, 0, 0, 10);
	cr_assert_eq(decode_header(header, 0), FRAME_E_INVALID);
	frame_encode_header(header, 1, LIMIT_FRAME_FDS + 1, 0, 10);
	cr_assert_eq(decode_header(header, 0), FRAME_E_INVALID);
	frame_encode_header(header, 1, LIMIT_FRAME_FDS, 0, 10);
	cr_assert_eq(decode_header(header, 0), FRAME_E_MORE);
	for (unsigned int bit = 0; bit < 8; bit++) {
		frame_encode_header(header, 1, 0, 0, 10);
		header[7] = (uint8_t)(1u << bit);
		cr_assert_eq(decode_header(header, 0), FRAME_E_INVALID);
	}
}

Test(frame, largest_body)
{
	size_t size = FRAME_HEADER + (size_t)LIMIT_FRAME_BODY;
	cleanup_free uint8_t *buf = malloc(size);
	struct frame_decoder d;
	struct frame *frame;
	size_t used;

	cr_assert_not_null(buf);
	memset(buf, 0xa5, size);
	frame_encode_header(buf, 9, 0, 3, LIMIT_FRAME_BODY);
	frame_decoder_init(&d);
	cr_assert_eq(frame_decode(&d, buf, size, &used, &frame), 0);
	cr_assert_eq(used, size);
	cr_assert_arr_eq(frame->body, buf + FRAME_HEADER, LIMIT_FRAME_BODY);
	frame_decoder_deinit(&d);
}

Test(frame, deinit_in_the_middle)
{
	uint8_t buf[FRAME_HEADER + 10] = {0};
	struct frame_decoder d;
	struct frame *frame;
	size_t used;

	frame_encode_header(buf, 9, 0, 3, 100);
	frame_decoder_init(&d);
	cr_assert_eq(frame_decode(&d, buf, sizeof(buf), &used, &frame), FRAME_E_MORE);
	frame_decoder_deinit(&d);
	frame_decoder_deinit(&d);
}

Test(frame, pack)
{
	Rocecomm__Error msg = ROCECOMM__ERROR__INIT, *back;
	cleanup_free uint8_t *buf = NULL;
	struct frame_decoder d;
	struct frame *frame;
	size_t size, used;

	msg.status = 8;
	msg.text = (char *)"buffer of 9 bytes is over the limit of 8 bytes";
	cr_assert_eq(frame_pack(1, 2, 77, &msg, &buf, &size), 0);
	frame_decoder_init(&d);
	cr_assert_eq(frame_decode(&d, buf, size, &used, &frame), 0);
	cr_assert_eq(used, size);
	cr_assert_eq(frame->type, 1);
	cr_assert_eq(frame->nfds, 2);
	cr_assert_eq(frame->serial, 77);
	back = rocecomm__error__unpack(NULL, frame->length, frame->body);
	cr_assert_not_null(back);
	cr_assert_eq(back->status, 8);
	cr_assert_str_eq(back->text, msg.text);
	rocecomm__error__free_unpacked(back, NULL);
	frame_decoder_deinit(&d);
}

Test(frame, pack_too_big)
{
	Rocecomm__Error msg = ROCECOMM__ERROR__INIT;
	cleanup_free char *text = malloc(LIMIT_FRAME_BODY + 1);
	uint8_t *buf = NULL;
	size_t size;

	cr_assert_not_null(text);
	memset(text, 'x', LIMIT_FRAME_BODY);
	text[LIMIT_FRAME_BODY] = 0;
	msg.text = text;
	cr_assert_eq(frame_pack(1, 0, 0, &msg, &buf, &size), FRAME_E_TOO_BIG);
	cr_assert_null(buf);
	/* 4: tag and length of the field; the limit itself is allowed */
	text[LIMIT_FRAME_BODY - 4] = 0;
	cr_assert_eq(frame_pack(1, 0, 0, &msg, &buf, &size), 0);
	cr_assert_eq(size, FRAME_HEADER + LIMIT_FRAME_BODY);
	free(buf);
}
