/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fake verbs: hosts, devices, and the test's hands on them
 *
 * Thread: the test's      Owns: see fake_verbs.h      Locks: none
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "proto/base.h"
#include "tests/fake/verbs/fake_impl.h"

static uint64_t fake_now(void *arg)
{
	return ((struct fake_net *)arg)->now;
}

struct fake_net *fake_verbs_new(uint64_t seed)
{
	struct fake_net *net = calloc(1, sizeof(*net));

	pthread_mutex_init(&net->lock, NULL);
	pthread_cond_init(&net->held, NULL);
	net->seed = seed * 2 + 1;
	net->now = CLOCK_NS_PER_S;
	net->clock = (struct clock_source){fake_now, net};
	net->next_qpn = 17;
	net->next_key = 4711;
	list_init(&net->qps);
	list_init(&net->mrs);
	list_init(&net->network);
	for (uint32_t i = 0; i < ARRAY_SIZE(net->hosts); i++) {
		net->hosts[i].api = fake_table;
		net->hosts[i].api.arg = &net->hosts[i];
		net->hosts[i].net = net;
		net->hosts[i].index = i;
	}
	return net;
}

struct fake_net *fake_verbs_free(struct fake_net *net)
{
	struct list *l;

	while ((l = list_first(&net->network))) {
		fake_wr_free(container_of(l, struct fake_wr, net));
	}
	for (uint32_t i = 0; i < net->ndevices; i++) {
		const struct fake_device *d = net->devices[i];

		if (d->qps || d->cqs || d->mrs) {
			fprintf(stderr,
				"%s: %d queue pairs, %d completion queues, %d regions left\n",
				d->device.name, d->qps, d->cqs, d->mrs);
			abort();
		}
		free(net->devices[i]);
	}
	pthread_cond_destroy(&net->held);
	pthread_mutex_destroy(&net->lock);
	free(net);
	return NULL;
}

const struct verbs_api *fake_verbs_api(struct fake_net *net, uint32_t host)
{
	return &net->hosts[host].api;
}

const struct clock_source *fake_verbs_clock(struct fake_net *net)
{
	return &net->clock;
}

void fake_verbs_advance(struct fake_net *net, uint64_t ns)
{
	net->now += ns;
}

uint64_t fake_verbs_random(struct fake_net *net, uint64_t below)
{
	net->seed = net->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (net->seed >> 33) % below;
}

union ibv_gid fake_verbs_gid(uint32_t rail, uint32_t host)
{
	union ibv_gid gid = {.raw = {[10] = 0xff, [11] = 0xff, [12] = 10}};

	gid.raw[13] = (uint8_t)rail;
	gid.raw[15] = (uint8_t)(host + 1);
	return gid;
}

struct fake_device *fake_verbs_device(struct fake_net *net, uint32_t host, const char *name,
				      uint32_t rail)
{
	struct fake_device *d = calloc(1, sizeof(*d));
	uint64_t at = 2 + fake_verbs_random(net, FAKE_GIDS - 2);

	d->net = net;
	d->host = host;
	d->present = d->link = true;
	snprintf(d->device.name, sizeof(d->device.name), "%s", name);
	snprintf(d->device.ibdev_path, sizeof(d->device.ibdev_path), "/sys/class/infiniband/%s",
		 name);
	d->device.transport_type = IBV_TRANSPORT_IB;
	d->caps = (struct fake_caps){.max_qp = 1000,
				     .max_cq = 100,
				     .max_mr = 1000,
				     .max_qp_wr = 4096,
				     .max_cqe = 1 << 16,
				     .max_sge = 16,
				     .max_inline = 256};
	d->port = (struct ibv_port_attr){.state = IBV_PORT_ACTIVE,
					 .max_mtu = IBV_MTU_4096,
					 .active_mtu = IBV_MTU_4096,
					 .gid_tbl_len = FAKE_GIDS,
					 .link_layer = IBV_LINK_LAYER_ETHERNET,
					 .active_speed = 32,
					 .active_width = 2};
	d->gids[0] = (struct fake_gid){
		true, {.raw = {0xfe, 0x80, [15] = 1}}, IBV_GID_TYPE_ROCE_V1, 1 + rail};
	d->gids[at] =
		(struct fake_gid){true, fake_verbs_gid(rail, host), IBV_GID_TYPE_ROCE_V2, 1 + rail};
	net->devices[net->ndevices++] = d;
	return d;
}

void fake_verbs_event(struct fake_device *d, enum ibv_event_type type)
{
	struct fake_net *net = d->net;

	assert(net->nevents < ARRAY_SIZE(net->events));
	net->events[net->nevents].device = d;
	memset(&net->events[net->nevents].event, 0, sizeof(net->events[0].event));
	net->events[net->nevents].event.event_type = type;
	net->events[net->nevents++].event.element.port_num = 1;
}

void fake_verbs_link(struct fake_device *d, bool up)
{
	d->link = up;
	d->port.state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
	fake_verbs_event(d, up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
}

void fake_verbs_mangle(struct fake_device *d, bool receive, uint32_t nth, enum fake_mangle what)
{
	d->net->mangler = (struct fake_mangler){receive, nth, what, d, {0}, NULL};
}

uint64_t fake_verbs_rnr(const struct fake_net *net)
{
	return net->rnr;
}

static struct fake_qp *nth_qp(struct fake_device *d, uint32_t nth)
{
	list_for_each (l, &d->net->qps) {
		struct fake_qp *q = container_of(l, struct fake_qp, link);

		if (q->device == d && nth-- == 0) {
			return q;
		}
	}
	return NULL;
}

const struct ibv_qp_attr *fake_verbs_qp_attr(struct fake_device *d, uint32_t nth)
{
	struct fake_qp *q = nth_qp(d, nth);

	return q ? &q->attr : NULL;
}

uint64_t fake_verbs_qp_bytes(struct fake_device *d, uint32_t nth)
{
	struct fake_qp *q = nth_qp(d, nth);

	return q ? q->bytes : 0;
}
