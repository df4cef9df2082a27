/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fuzz the messages that keep a link between daemons, and the data hello
 *
 * Input: a byte n that says how many bytes come at a time (0: all), then what a peer sends inside
 * TLS: a hello and frames, handled as link.c and peer.c do; the same bytes are also tried as a data
 * hello. Text that is taken from them must be fit for a log and cut between characters.
 *
 * Thread: one      Owns: nothing      Locks: none
 */
#include <string.h>

#include "job/link.h"
#include "job/peer_wire.h"
#include "proto/base.h"
#include "proto/hello.h"
#include "proto/msg.h"
#include "tests/fuzz/fuzz.h"

static void check_text(const char *text, size_t size)
{
	fuzz_check(memchr(text, '\0', size));
	for (const char *p = text; *p; p++) {
		fuzz_check((unsigned char)*p >= 0x20 && *p != 0x7f);
	}
}

static void take_hello(const uint8_t *body, size_t size)
{
	static const struct peers_setting ours[] = {{"chunk_bytes", "1048576"}, {"k", ""}};
	struct peer_hello hello;
	char differs[300];

	if (peer_hello_parse(body, size, &hello) != 0) {
		return;
	}
	fuzz_check(!peer_id_is_zero(hello.host_id) && hello.name[0] != '\0');
	check_text(hello.name, sizeof(hello.name));
	check_text(hello.version, sizeof(hello.version));
	for (size_t n = 0; n <= ARRAY_SIZE(ours); n++) {
		bool differ = peer_hello_differs(&hello, ours, n, differs, sizeof(differs));

		check_text(differs, sizeof(differs));
		fuzz_check(differ == (differs[0] != '\0'));
		fuzz_check(differ || hello.msg->n_settings >= n);
	}
	peer_hello_deinit(&hello);
	fuzz_check(!hello.msg);
}

static void take_frame(const struct frame *frame)
{
	struct peer_tokens tokens;
	char reason[PEER_REASON];

	switch (frame->type) {
	case PEER_MSG_LINK_HELLO:
		take_hello(frame->body, frame->length);
		break;
	case PEER_MSG_DATA_TOKENS:
		if (peer_tokens_parse(frame->body, frame->length, &tokens) == 0) {
			fuzz_check(tokens.n <= PEER_MAX_STREAMS);
		}
		break;
	case PEER_MSG_GOODBYE:
		if (peer_goodbye_parse(frame->body, frame->length, reason) == 0) {
			check_text(reason, sizeof(reason));
			fuzz_check(reason[0] != '\0');
		}
		break;
	default:
		break;
	}
}

static void take_stream(const uint8_t *data, size_t size, size_t step)
{
	const struct hello ours = {.min = PROTOCOL_PEER_VERSION_MIN,
				   .max = PROTOCOL_PEER_VERSION_MAX};
	struct frame_decoder decoder;
	struct hello theirs;
	uint16_t version;

	if (size < HELLO_SIZE ||
	    hello_decode(data, HELLO_MAGIC_PEER, &ours, &theirs, &version) != 0) {
		return;
	}
	fuzz_check(version >= ours.min && version <= ours.max);
	data += HELLO_SIZE;
	size -= HELLO_SIZE;
	frame_decoder_init(&decoder);
	decoder.max_body = LINK_BODY_MAX_FIRST;
	while (size > 0) {
		struct frame *frame;
		size_t used;
		int r = frame_decode(&decoder, data, MIN(size, step), &used, &frame);

		fuzz_check(used <= MIN(size, step));
		data += used;
		size -= used;
		if (r == 0 && frame->nfds == 0) {
			take_frame(frame);
		} else if (r != FRAME_E_MORE) {
			break;
		}
	}
	frame_decoder_deinit(&decoder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t again[DATA_HELLO_SIZE];
	struct data_hello hello;

	if (size == 0) {
		return 0;
	}
	take_stream(data + 1, size - 1, data[0] == 0 ? SIZE_MAX : data[0]);
	if (size > DATA_HELLO_SIZE && data_hello_decode(data + 1, &hello) == 0) {
		data_hello_encode(again, &hello);
		fuzz_check(memcmp(again, data + 1, DATA_HELLO_SIZE) == 0);
	}
	return 0;
}
