/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fuzz the messages: any bytes as any message of rocecomm.proto and peer.proto
 *
 * Input: 1 byte that chooses the message (the index in the table), then its body. What unpacks must
 * pack into the size announced. That need not unpack again: protobuf-c 1.4.1 accepts a field number
 * 0 that is written as a long varint, keeps it as unknown and packs it short, which it refuses. We
 * never send on what we unpacked.
 *
 * Thread: one      Owns: the unpacked messages      Locks: none
 */
#include "peer.pb-c.h"
#include "proto/base.h"
#include "rocecomm.pb-c.h"
#include "tests/fuzz/fuzz.h"

/* Appended, so that the files of the corpus keep their meaning. */
static const ProtobufCMessageDescriptor *const messages[] = {
	&rocecomm__error__descriptor,
	&rocecomm__client_hello__descriptor,
	&rocecomm__welcome__descriptor,
	&rocecomm__get_unique_id__descriptor,
	&rocecomm__unique_id__descriptor,
	&rocecomm__comm_init__descriptor,
	&rocecomm__env_id__descriptor,
	&rocecomm__comm_options__descriptor,
	&rocecomm__comm_ready__descriptor,
	&rocecomm__host_info__descriptor,
	&rocecomm__comm_split__descriptor,
	&rocecomm__comm_destroy__descriptor,
	&rocecomm__comm_abort__descriptor,
	&rocecomm__comm_error__descriptor,
	&rocecomm__comm_error_reply__descriptor,
	&rocecomm__done__descriptor,
	&rocecomm__buffer_register__descriptor,
	&rocecomm__buffer_ready__descriptor,
	&rocecomm__buffer_deregister__descriptor,
	&rocecomm__status_get__descriptor,
	&rocecomm__status_reply__descriptor,
	&rocecomm__config_get__descriptor,
	&rocecomm__config_reply__descriptor,
	&rocecomm__config_item__descriptor,
	&rocecomm__goodbye__descriptor,
	&rocecomm__peer__host__descriptor,
	&rocecomm__peer__link_hello__descriptor,
	&rocecomm__peer__setting__descriptor,
	&rocecomm__peer__data_tokens__descriptor,
	&rocecomm__peer__heartbeat__descriptor,
	&rocecomm__peer__rank__descriptor,
	&rocecomm__peer__join__descriptor,
	&rocecomm__peer__comm_prepare__descriptor,
	&rocecomm__peer__join_taken__descriptor,
	&rocecomm__peer__comm_prepared__descriptor,
	&rocecomm__peer__comm_go__descriptor,
	&rocecomm__peer__comm_fail__descriptor,
	&rocecomm__peer__comm_leave__descriptor,
	&rocecomm__peer__split__descriptor,
	&rocecomm__peer__status_query__descriptor,
	&rocecomm__peer__status_answer__descriptor,
	&rocecomm__peer__rank_state__descriptor,
	&rocecomm__peer__goodbye__descriptor,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const ProtobufCMessageDescriptor *descriptor;
	cleanup_free uint8_t *packed = NULL;
	ProtobufCMessage *msg;
	size_t n;

	if (size < 1) {
		return 0;
	}
	descriptor = messages[data[0] % ARRAY_SIZE(messages)];
	msg = protobuf_c_message_unpack(descriptor, NULL, size - 1, data + 1);
	if (!msg) {
		return 0;
	}
	fuzz_check(protobuf_c_message_check(msg));
	n = protobuf_c_message_get_packed_size(msg);
	packed = malloc(n ? n : 1);
	fuzz_check(packed);
	fuzz_check(protobuf_c_message_pack(msg, packed) == n);
	protobuf_c_message_free_unpacked(msg, NULL);
	msg = protobuf_c_message_unpack(descriptor, NULL, n, packed);
	if (msg) {
		protobuf_c_message_free_unpacked(msg, NULL);
	}
	return 0;
}
