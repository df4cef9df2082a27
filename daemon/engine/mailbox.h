/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Mailbox: the only crossing between the control thread and a progress thread
 *
 * Two lock-free stacks of intrusive messages, one each way, taken whole and reversed by the reader,
 * so messages run in the order of posting. A message is owned by whoever holds it: control
 * allocates, the progress thread runs it and either posts it back (control then runs `back` and
 * frees it) or, for events, posts one that is embedded in an object that control will remove. The
 * progress thread so never allocates or frees.
 *
 * Thread: each function says      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_ENGINE_MAILBOX_H
#define ROCECOMM_ENGINE_MAILBOX_H

#include <stdbool.h>

struct mailbox_msg {
	struct mailbox_msg *next;
	void (*run)(void *ctx, struct mailbox_msg *msg);
};

struct mailbox {
	_Atomic(struct mailbox_msg *) top;
	int fd; /* eventfd: readable after a post */
};

int mailbox_init(struct mailbox *m);
void mailbox_deinit(struct mailbox *m);
/*
 * Any thread. The eventfd is written only when the box was empty.
 * Return: true when it was: one system call.
 */
bool mailbox_post(struct mailbox *m, struct mailbox_msg *msg);
/* Reader thread. Runs all messages in order of posting; returns how many. */
int mailbox_run(struct mailbox *m, void *ctx);
/* Reader thread: a look without a system call. */
bool mailbox_empty(struct mailbox *m);
/* Reader thread: resets the eventfd, before mailbox_run(). */
void mailbox_clear(struct mailbox *m);

#endif
