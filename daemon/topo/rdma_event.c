/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Events of RDMA devices, as plain values
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#include "topo/rdma.h"

#include <stdio.h>

#include "proto/base.h"

int rdma_device_fd(const struct rdma_device *d)
{
	return d->context ? d->context->async_fd : -1;
}

static const struct {
	enum ibv_event_type type;
	enum rdma_event_kind kind;
	const char *text;
} events[] = {
	{IBV_EVENT_QP_FATAL, RDMA_EVENT_QP, "QP_FATAL"},
	{IBV_EVENT_QP_REQ_ERR, RDMA_EVENT_QP, "QP_REQ_ERR"},
	{IBV_EVENT_QP_ACCESS_ERR, RDMA_EVENT_QP, "QP_ACCESS_ERR"},
	{IBV_EVENT_DEVICE_FATAL, RDMA_EVENT_FATAL, "DEVICE_FATAL"},
	{IBV_EVENT_CQ_ERR, RDMA_EVENT_FATAL, "CQ_ERR"},
	{IBV_EVENT_PORT_ACTIVE, RDMA_EVENT_PORT_UP, "PORT_ACTIVE"},
	{IBV_EVENT_PORT_ERR, RDMA_EVENT_PORT_DOWN, "PORT_ERR"},
	{IBV_EVENT_GID_CHANGE, RDMA_EVENT_GIDS, "GID_CHANGE"},
	{IBV_EVENT_LID_CHANGE, RDMA_EVENT_GIDS, "LID_CHANGE"},
};

int rdma_device_event(struct rdma_device *d, struct rdma_event *ret)
{
	struct ibv_async_event event;
	size_t i;

	if (!d->context) {
		return -EAGAIN;
	}
	errno = 0;
	if (d->api->get_async_event(d->context, &event) != 0) {
		return errno == EAGAIN || errno == 0 ? -EAGAIN : err_origin(-errno);
	}
	*ret = (struct rdma_event){.kind = RDMA_EVENT_OTHER};
	for (i = 0; i < ARRAY_SIZE(events) && events[i].type != event.event_type; i++) {
		/* looking */
	}
	if (i < ARRAY_SIZE(events)) {
		ret->kind = events[i].kind;
		snprintf(ret->text, sizeof(ret->text), "%s", events[i].text);
	} else {
		snprintf(ret->text, sizeof(ret->text), "event %d", (int)event.event_type);
	}
	if (ret->kind == RDMA_EVENT_QP) {
		ret->qpn = event.element.qp->qp_num;
	} else if (ret->kind != RDMA_EVENT_OTHER && ret->kind != RDMA_EVENT_FATAL) {
		ret->port = (uint8_t)event.element.port_num;
	}
	d->api->ack_async_event(d->context, &event);
	return 0;
}
