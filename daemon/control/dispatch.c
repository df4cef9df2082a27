/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Dispatch: implementation
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#include "control/dispatch.h"

#include <protobuf-c/protobuf-c.h>

#include "control/handle.h"
#include "proto/msg.h"
#include "rocecomm.pb-c.h"

static const struct dispatch_row {
	const char *name;
	const ProtobufCMessageDescriptor *descriptor;
	handle_fn handle;
	unsigned int nfds;
	enum session_state state;
	bool page; /* not for rocectl, which has no session page */
} dispatch_rows[MSG_COUNT_] = {
	[MSG_CLIENT_HELLO] = {"ClientHello", &rocecomm__client_hello__descriptor, handle_hello, 0,
			      SESSION_GREETED, false},
	[MSG_GET_UNIQUE_ID] = {"GetUniqueId", &rocecomm__get_unique_id__descriptor,
			       handle_unique_id, 0, SESSION_READY, true},
	[MSG_COMM_INIT] = {"CommInit", &rocecomm__comm_init__descriptor, handle_comm_init, 0,
			   SESSION_READY, true},
	[MSG_COMM_SPLIT] = {"CommSplit", &rocecomm__comm_split__descriptor, handle_comm_split, 0,
			    SESSION_READY, true},
	[MSG_COMM_DESTROY] = {"CommDestroy", &rocecomm__comm_destroy__descriptor,
			      handle_comm_destroy, 0, SESSION_READY, true},
	[MSG_COMM_ABORT] = {"CommAbort", &rocecomm__comm_abort__descriptor, handle_comm_abort, 0,
			    SESSION_READY, true},
	[MSG_COMM_ERROR] = {"CommError", &rocecomm__comm_error__descriptor, handle_comm_error, 0,
			    SESSION_READY, true},
	[MSG_BUFFER_REGISTER] = {"BufferRegister", &rocecomm__buffer_register__descriptor,
				 handle_register, 1, SESSION_READY, true},
	[MSG_BUFFER_DEREGISTER] = {"BufferDeregister", &rocecomm__buffer_deregister__descriptor,
				   handle_deregister, 0, SESSION_READY, true},
	[MSG_GPU_ALLOC_REGISTER] = {"GpuAllocRegister", &rocecomm__gpu_alloc_register__descriptor,
				    handle_gpu_alloc, 0, SESSION_READY, true},
	[MSG_GPU_ALLOC_RELEASE] = {"GpuAllocRelease", &rocecomm__gpu_alloc_release__descriptor,
				   handle_gpu_release, 0, SESSION_READY, true},
	[MSG_GPU_BUFFER_REGISTER] = {"GpuBufferRegister",
				     &rocecomm__gpu_buffer_register__descriptor, handle_gpu_buffer,
				     0, SESSION_READY, true},
	[MSG_STATUS_GET] = {"StatusGet", &rocecomm__status_get__descriptor, handle_status, 0,
			    SESSION_READY, false},
	[MSG_CONFIG_GET] = {"ConfigGet", &rocecomm__config_get__descriptor, handle_config, 0,
			    SESSION_READY, false},
	[MSG_LINKS_GET] = {"LinksGet", &rocecomm__links_get__descriptor, handle_links, 0,
			   SESSION_READY, false},
	[MSG_PATHS_GET] = {"PathsGet", &rocecomm__paths_get__descriptor, handle_paths, 0,
			   SESSION_READY, false},
	[MSG_CHECK_PEER] = {"CheckPeer", &rocecomm__check_peer__descriptor, handle_check, 0,
			    SESSION_READY, false},
};

/* Return: true when it may be handled; else it is answered. */
static bool dispatch_check(struct session *s, const struct frame *frame,
			   const struct dispatch_row *row, const struct fdset *fds, bool lost)
{
	if (s->state != row->state) {
		session_refuse(s, frame->serial, STATUS_PROTOCOL, "%s is out of order: %s",
			       row->name,
			       s->state == SESSION_GREETED ? "ClientHello comes first"
							   : "ClientHello comes once");
		return false;
	}
	if (row->page && s->admin_only) {
		session_refuse(s, frame->serial, STATUS_PROTOCOL,
			       "%s is not for a session that asked for administration only",
			       row->name);
		return false;
	}
	if (fds->n < row->nfds || (lost && row->nfds > 0)) {
		session_refuse(s, frame->serial, STATUS_FD_MISSING,
			       "%s came with %u of %u descriptors: a security module (SELinux, "
			       "AppArmor) may forbid passing them (look for denials in the audit "
			       "log: ausearch -m avc), or the daemon is out of descriptors",
			       row->name, fds->n, row->nfds);
		return false;
	}
	return true;
}

/* See dispatch.h. */
void dispatch(struct session *s, const struct frame *frame, struct fdset *fds, bool lost)
{
	const struct dispatch_row *row =
		frame->type < MSG_COUNT_ ? &dispatch_rows[frame->type] : NULL;
	ProtobufCMessage *msg;

	if (frame->serial == 0) {
		session_goodbye(s, STATUS_PROTOCOL, "a request has the serial 0, which is not one",
				"the daemon closed its connection, since it broke the protocol");
		return;
	}
	if (!row || !row->handle) {
		session_refuse(s, frame->serial, STATUS_PROTOCOL,
			       "message type %u is unknown to this daemon (protocol %d): use a "
			       "library of its version",
			       frame->type, PROTOCOL_VERSION_MAX);
		return;
	}
	if (!dispatch_check(s, frame, row, fds, lost)) {
		return;
	}
	msg = protobuf_c_message_unpack(row->descriptor, NULL, frame->length, frame->body);
	if (!msg) {
		session_refuse(s, frame->serial, STATUS_PROTOCOL,
			       "%s cannot be decoded: its %u bytes are no such message", row->name,
			       frame->length);
		return;
	}
	row->handle(s, frame->serial, msg, fds);
	protobuf_c_message_free_unpacked(msg, NULL);
}
