/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Verbs backend: devices of a context and their completion queues
 *
 * One completion queue a device serves all its queue pairs; each of these reserves as many entries
 * as it can ever fill, and when that does not fit any more there is one more queue.
 *
 * Thread: the progress thread that owns the context      Owns: channels, completion queues
 * Locks: none
 */
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#include "transport/verbs/verbs_impl.h"

#define CQ_ENTRIES 8192u

/* Of the device only its name is used afterwards. */
void verbs_dev_close(struct verbs_dev *dev)
{
	while (dev->cqs) {
		struct verbs_cq *cq = dev->cqs;

		dev->cqs = cq->next;
		dev->api->destroy_cq(cq->cq);
		free(cq);
	}
	if (dev->channel) {
		dev->api->destroy_channel(dev->channel);
		dev->channel = NULL;
	}
}

static void explain_cq(const struct verbs_dev *dev, uint32_t entries, char *hint, size_t size)
{
	int n = 0;

	for (const struct verbs_cq *cq = dev->cqs; cq; cq = cq->next) {
		n++;
	}
	if (n > 0 && n >= dev->device->attr.max_cq) {
		snprintf(hint, size, "%d are in use here, the device has %d", n,
			 dev->device->attr.max_cq);
	} else {
		rdma_memlock_hint((size_t)entries * 64, hint, size);
	}
}

int verbs_cq_reserve(struct verbs_dev *dev, uint32_t entries, struct verbs_cq **ret, char *why,
		     size_t size)
{
	uint32_t max = (uint32_t)MAX(dev->device->attr.max_cqe, 1);
	struct verbs_cq *cq;

	for (cq = dev->cqs; cq; cq = cq->next) {
		if (cq->size - cq->reserved >= entries) {
			cq->reserved += entries;
			*ret = cq;
			return 0;
		}
	}
	cq = calloc(1, sizeof(*cq));
	if (!cq) {
		return err_origin(-ENOMEM);
	}
	cq->dev = dev;
	errno = 0;
	cq->cq = dev->api->create_cq(dev->device->context, (int)MIN(MAX(CQ_ENTRIES, entries), max),
				     cq, dev->channel);
	cq->size = cq->cq ? (uint32_t)cq->cq->cqe : 0;
	if (cq->size < entries) {
		int r = cq->cq ? ENOSPC : (errno ? errno : EIO);
		char hint[160] = "";

		if (r == ENOMEM) {
			explain_cq(dev, entries, hint, sizeof(hint));
		}
		snprintf(why, size, "%s: cannot make a completion queue of %u entries: %s%s%s",
			 dev->device->name, entries, strerror(r), hint[0] ? "; " : "", hint);
		if (cq->cq) {
			dev->api->destroy_cq(cq->cq);
		}
		free(cq);
		return -r;
	}
	cq->reserved = entries;
	cq->next = dev->cqs;
	dev->cqs = cq;
	*ret = cq;
	return 0;
}

/* Rails of a port (0: of all) are tried again at once. */
static void hurry(struct verbs *v, const struct verbs_dev *dev, uint8_t port)
{
	list_for_each (l, &v->peers) {
		struct verbs_peer *peer = container_of(l, struct verbs_peer, link);

		for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
			struct verbs_rail *rail = peer->rails[i];

			if (rail && rail->dev == dev && (!port || rail->port == port)) {
				rail->reopen_at = v->now;
				verbs_peer_dirty(peer);
			}
		}
	}
}

/**
 * verbs_device_add() - get ready for rails on a device
 * @v:    borrowed
 * @d:    borrowed until verbs_device_lost() or verbs_free(); may be one that was lost
 * @why:  a sentence when it fails
 * @size: of why
 *
 * Return: 0, or negative errno.
 */
int verbs_device_add(struct verbs *v, struct rdma_device *d, char *why, size_t size)
{
	struct verbs_dev *dev = &v->devs[d->index];
	struct epoll_event event = {.events = EPOLLIN};
	int r;

	if (dev->device && !dev->lost) {
		return 0;
	}
	if (!d->context || d->gone) {
		snprintf(why, size, "%s: %s", d->name, d->reason);
		return -ENODEV;
	}
	r = rdma_mem_add_device(v->buffers, d);
	if (r < 0) {
		snprintf(why, size, "%s", v->buffers->reason);
		return r;
	}
	errno = 0;
	dev->channel = d->api->create_channel(d->context);
	event.data.fd = dev->channel ? dev->channel->fd : -1;
	if (!dev->channel || epoll_ctl(v->epoll, EPOLL_CTL_ADD, dev->channel->fd, &event) < 0) {
		r = errno ? -errno : -EIO;
		snprintf(why, size, "%s: cannot make a completion channel: %s", d->name,
			 strerror(-r));
		if (dev->channel) {
			d->api->destroy_channel(dev->channel);
			dev->channel = NULL;
		}
		rdma_mem_drop_device(v->buffers, d);
		return r;
	}
	dev->device = d;
	dev->api = d->api;
	if (dev->lost) {
		dev->lost = false;
		verbs_enter(v);
		hurry(v, dev, 0);
		verbs_leave(v);
	}
	v->ndevs = MAX(v->ndevs, d->index + 1);
	return 0;
}

static void fail_rails(struct verbs *v, const struct verbs_dev *dev, uint8_t port, bool only_spare,
		       const char *text)
{
	list_for_each_safe (l, &v->peers) {
		struct verbs_peer *peer = container_of(l, struct verbs_peer, link);

		for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
			struct verbs_rail *rail = peer->rails[i];

			if (!rail || rail->dev != dev || (port && rail->port != port)) {
				continue;
			}
			/* The only rail is left to the device's retries: a flap may pass. */
			if (only_spare && !(peer->up & ~(1u << i))) {
				continue;
			}
			verbs_rail_fail(rail, -ENETDOWN, "%s", text);
		}
	}
}

/* Nothing comes from the device any more: no use in waiting for the drain. */
static void release_rails(struct verbs_peer *peer, const struct verbs_dev *dev)
{
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
		struct verbs_rail *rail = peer->rails[i];

		if (rail && rail->dev == dev) {
			verbs_rail_destroy_qps(rail);
			verbs_rail_drop_rx(rail);
		}
	}
}

/**
 * verbs_device_lost() - leave a device for good
 * @v:    borrowed
 * @d:    borrowed; only its name is used after this
 * @text: why
 */
void verbs_device_lost(struct verbs *v, struct rdma_device *d, const char *text)
{
	struct verbs_dev *dev = &v->devs[d->index];

	if (!dev->device || dev->lost) {
		return;
	}
	verbs_enter(v);
	dev->lost = true;
	fail_rails(v, dev, 0, false, text);
	verbs_dev_finish(v, dev);
	list_for_each (l, &v->peers) {
		release_rails(container_of(l, struct verbs_peer, link), dev);
	}
	rdma_mem_drop_device(v->buffers, d);
	verbs_dev_close(dev);
	verbs_leave(v);
}

static void qp_event(struct verbs *v, const struct verbs_dev *dev, uint32_t qpn, const char *text)
{
	for (uint32_t i = 0; i < VERBS_QP_TABLE; i++) {
		struct verbs_qp *qp = v->qps[i].qp;

		if (qp && qp->rail->dev == dev && qp->qp->qp_num == qpn) {
			verbs_rail_fail(qp->rail, -EIO, "the device reports %s for queue pair %u",
					text, qpn);
			return;
		}
	}
}

/**
 * verbs_device_event() - react on an event of a device
 * @v:     borrowed
 * @d:     borrowed
 * @event: borrowed
 *
 * Events of ports and devices without rails mean nothing here.
 */
void verbs_device_event(struct verbs *v, struct rdma_device *d, const struct rdma_event *event)
{
	struct verbs_dev *dev = &v->devs[d->index];
	char text[96];

	if (!dev->device || dev->lost) {
		return;
	}
	verbs_enter(v);
	snprintf(text, sizeof(text), "the device reports %s", event->text);
	switch (event->kind) {
	case RDMA_EVENT_PORT_DOWN:
		fail_rails(v, dev, event->port, true, text);
		break;
	case RDMA_EVENT_PORT_UP:
	case RDMA_EVENT_GIDS:
		hurry(v, dev, event->port);
		break;
	case RDMA_EVENT_QP:
		qp_event(v, dev, event->qpn, event->text);
		break;
	case RDMA_EVENT_FATAL:
		verbs_device_lost(v, d, text);
		break;
	case RDMA_EVENT_OTHER:
		break;
	}
	verbs_leave(v);
}
