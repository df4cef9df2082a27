/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Message types: the number in a frame header that says which protobuf message follows
 *
 * Client socket and peer link number independently. Values are never reused.
 *
 * Thread: any      Owns: nothing      Locks: none      See: PROTOCOL.md §3, §7
 */
#ifndef ROCECOMM_PROTO_MSG_H
#define ROCECOMM_PROTO_MSG_H

enum msg_type {
	MSG_ERROR = 1,
	MSG_CLIENT_HELLO = 2,
	MSG_WELCOME = 3,
	MSG_GET_UNIQUE_ID = 4,
	MSG_UNIQUE_ID = 5,
	MSG_COMM_INIT = 6,
	MSG_COMM_READY = 7,
	MSG_COMM_SPLIT = 8,
	MSG_COMM_DESTROY = 9,
	MSG_COMM_ABORT = 10,
	MSG_COMM_ERROR = 11,
	MSG_COMM_ERROR_REPLY = 12,
	MSG_DONE = 13,
	MSG_BUFFER_REGISTER = 14,
	MSG_BUFFER_READY = 15,
	MSG_BUFFER_DEREGISTER = 16,
	MSG_STATUS_GET = 17,
	MSG_STATUS_REPLY = 18,
	MSG_CONFIG_GET = 19,
	MSG_CONFIG_REPLY = 20,
	MSG_GOODBYE = 21,
	MSG_GPU_ALLOC_REGISTER = 22,
	MSG_GPU_ALLOC_READY = 23,
	MSG_GPU_ALLOC_RELEASE = 24,
	MSG_GPU_BUFFER_REGISTER = 25,
	MSG_GPU_BUFFER_READY = 26,
	MSG_LINKS_GET = 32,
	MSG_LINKS_REPLY = 33,
	MSG_PATHS_GET = 34,
	MSG_PATHS_REPLY = 35,
	MSG_CHECK_PEER = 36,
	MSG_CHECK_REPLY = 37,
	MSG_COUNT_
};

/* Daemon to daemon, inside TLS (peer.proto). */
enum peer_msg_type {
	PEER_MSG_LINK_HELLO = 1,
	PEER_MSG_DATA_TOKENS = 2,
	PEER_MSG_HEARTBEAT = 3,
	PEER_MSG_JOIN = 4,
	PEER_MSG_COMM_PREPARE = 5,
	PEER_MSG_COMM_PREPARED = 6,
	PEER_MSG_COMM_GO = 7,
	PEER_MSG_COMM_FAIL = 8,
	PEER_MSG_COMM_LEAVE = 9,
	PEER_MSG_SPLIT = 10,
	PEER_MSG_STATUS_QUERY = 11,
	PEER_MSG_STATUS_ANSWER = 12,
	PEER_MSG_GOODBYE = 13,
	PEER_MSG_JOIN_TAKEN = 14,
	PEER_MSG_COUNT_
};

#endif
