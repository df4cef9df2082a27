/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Mailbox: see mailbox.h
 *
 * Thread: as mailbox.h says      Owns: the eventfd      Locks: none
 */
#include "engine/mailbox.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "proto/base.h"

int mailbox_init(struct mailbox *m)
{
	atomic_init(&m->top, NULL);
	m->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return m->fd < 0 ? err_origin(-errno) : 0;
}

void mailbox_deinit(struct mailbox *m)
{
	m->fd = base_close(m->fd);
}

bool mailbox_post(struct mailbox *m, struct mailbox_msg *msg)
{
	struct mailbox_msg *top = atomic_load_explicit(&m->top, memory_order_relaxed);

	do {
		msg->next = top;
		/* release: pairs with the acquire exchange in mailbox_run() */
	} while (!atomic_compare_exchange_weak_explicit(&m->top, &top, msg, memory_order_seq_cst,
							memory_order_relaxed));
	if (!top) {
		uint64_t one = 1;

		/* Fails only when the counter is full: then it is readable anyway. */
		(void)!write(m->fd, &one, sizeof(one));
	}
	return !top;
}

int mailbox_run(struct mailbox *m, void *ctx)
{
	/* acquire: pairs with the release in mailbox_post() */
	struct mailbox_msg *top = atomic_exchange_explicit(&m->top, NULL, memory_order_acquire);
	struct mailbox_msg *first = NULL;
	int n = 0;

	while (top) {
		struct mailbox_msg *next = top->next;

		top->next = first;
		first = top;
		top = next;
	}
	while (first) {
		struct mailbox_msg *msg = first;

		first = msg->next; /* run() may free or repost msg */
		msg->run(ctx, msg);
		n++;
	}
	return n;
}

bool mailbox_empty(struct mailbox *m)
{
	return atomic_load_explicit(&m->top, memory_order_relaxed) == NULL;
}

void mailbox_clear(struct mailbox *m)
{
	uint64_t v;

	(void)!read(m->fd, &v, sizeof(v));
}
