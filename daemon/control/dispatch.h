/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Dispatch: from a frame to its handler
 *
 * One table says which message is allowed in which state, with how many descriptors, and who
 * handles it. A message that breaks a rule is answered in words and changes nothing; the connection
 * goes on, since the framing is intact. Descriptors that nobody asked for are closed.
 *
 * Thread: control      Owns: nothing      Locks: none      See: PROTOCOL.md §3
 */
#ifndef ROCECOMM_CONTROL_DISPATCH_H
#define ROCECOMM_CONTROL_DISPATCH_H

#include "control/session.h"
#include "proto/fdpass.h"
#include "proto/frame.h"

/* @fds: of this frame; what a handler does not take is closed by the caller. @lost: some are. */
void dispatch(struct session *s, const struct frame *frame, struct fdset *fds, bool lost);

#endif
