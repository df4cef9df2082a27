/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Verbs backend: making and connecting the queue pairs of a rail
 *
 * Both ends agree on the smaller MTU, number of queue pairs, frame and fragment. The trial is a
 * frame larger than any MTU, there and back, and an empty write on each bulk queue pair, whose UDP
 * source port may take another way through the network.
 *
 * Thread: the progress thread that owns the context      Owns: nothing      Locks: none
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "transport/verbs/verbs_impl.h"

static void explain_rx(const struct verbs_rail *rail, int error, char *why, size_t size)
{
	const struct rdma_device *d = rail->dev->device;
	char hint[160] = "";

	if (error == ENOMEM || error == EAGAIN || error == ENOSPC) {
		rdma_region_hint(d, rail->rx_size, hint, sizeof(hint));
	}
	snprintf(why, size, "%s: cannot register receive buffers: %s%s%s", d->name, strerror(error),
		 hint[0] ? "; " : "", hint);
}

static int make_rx(struct verbs_rail *rail, char *why, size_t size)
{
	struct verbs *v = rail->peer->v;
	const struct verbs_dev *dev = rail->dev;
	void *base;
	int r;

	if (rail->rx_mr) {
		return 0;
	}
	rail->rx_size = ALIGN_UP((size_t)v->frame_stride * v->options.credits, 4096u);
	if (!rail->rx) {
		base = mmap(NULL, rail->rx_size, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (base == MAP_FAILED) {
			snprintf(why, size, "out of memory");
			return err_origin(-ENOMEM);
		}
		madvise(base, rail->rx_size, MADV_DONTFORK);
		rail->rx = base;
	}
	errno = 0;
	rail->rx_mr =
		dev->api->reg_mr(dev->device->pd, rail->rx, rail->rx_size, IBV_ACCESS_LOCAL_WRITE);
	if (rail->rx_mr) {
		/* relaxed, as all that counts regions */
		atomic_fetch_add_explicit(&dev->device->receive_regions, 1, memory_order_relaxed);
		return 0;
	}
	r = errno ? errno : EIO;
	explain_rx(rail, r, why, size);
	return -r;
}

void verbs_rail_drop_rx(struct verbs_rail *rail)
{
	if (rail->rx_mr) {
		rail->dev->api->dereg_mr(rail->rx_mr);
		rail->rx_mr = NULL;
		atomic_fetch_sub_explicit(&rail->dev->device->receive_regions, 1,
					  memory_order_relaxed);
	}
}

void verbs_rail_destroy_qps(struct verbs_rail *rail)
{
	for (uint32_t i = 0; i < VERBS_QPS_MAX; i++) {
		if (rail->qps[i]) {
			/* First the end of all its work, then what becomes of that. */
			verbs_qp_close(rail->qps[i]);
			verbs_resume_entries(rail->qps[i]);
			rail->qps[i] = verbs_qp_free(rail->qps[i]);
		}
	}
	rail->inflight = 0;
}

static uint32_t random_psn(struct verbs *v)
{
	v->seed = v->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(v->seed >> 40) & 0xffffff;
}

static void fill_blob(struct verbs_rail *rail, const struct ibv_port_attr *port)
{
	struct verbs *v = rail->peer->v;
	struct verbs_blob *b = &rail->local;

	*b = (struct verbs_blob){
		.magic = VERBS_BLOB_MAGIC,
		.version = VERBS_BLOB_VERSION,
		.rail = (uint8_t)rail->index,
		.nqps = (uint8_t)rail->nqps,
		.epoch = rail->epoch,
		.lid = port->lid,
		.mtu = (uint16_t)MIN(128u << port->active_mtu, v->options.mtu),
		.credits = (uint16_t)v->options.credits,
		.tickets = (uint16_t)v->options.tickets,
		.frame = v->options.eager + WIRE_SIZE,
		.fragment = v->options.fragment,
		.traffic_class = v->options.traffic_class,
		.port = rail->port,
		.device_index = (uint8_t)rail->dev->device->index,
	};
	memcpy(b->gid, rail->gid.raw, sizeof(b->gid));
	snprintf(b->device, sizeof(b->device), "%.31s", rail->dev->device->name);
	for (uint32_t i = 0; i < rail->nqps; i++) {
		b->qpn[i] = rail->qps[i]->qp->qp_num;
		b->psn[i] = random_psn(v);
	}
}

int verbs_rail_prepare(struct verbs_rail *rail, char *why, size_t size)
{
	struct rdma_device *d = rail->dev->device;
	struct ibv_port_attr port = {0};
	char text[INET6_ADDRSTRLEN];
	int r;

	rdma_gid_text(&rail->gid, text);
	rail->acked = rail->arrived = rail->remote_arrived = 0;
	if (rail->dev->lost || d->gone) {
		snprintf(why, size, "%s: the device is gone", d->name);
		return -ENODEV;
	}
	r = d->api->query_port(d->context, rail->port, &port);
	if (r || port.state != IBV_PORT_ACTIVE) {
		snprintf(why, size, "%s port %u is down", d->name, rail->port);
		return -ENETDOWN;
	}
	r = rdma_gid_lookup(d, rail->port, &rail->gid, &rail->gid_index);
	if (r < 0) {
		snprintf(why, size, "%s port %u has no RoCE v2 GID for %s any more", d->name,
			 rail->port, text);
		return r;
	}
	r = make_rx(rail, why, size);
	rail->nqps = 1 + rail->peer->v->options.bulk_qps;
	for (uint32_t i = 0; r == 0 && i < rail->nqps; i++) {
		r = verbs_qp_new(rail, i, &rail->qps[i], why, size);
	}
	if (r < 0) {
		verbs_rail_destroy_qps(rail);
		return r;
	}
	rail->owed = 0;
	rail->credits = 0;
	rail->mtu = 0;
	rail->rate = 0;
	fill_blob(rail, &port);
	return 0;
}

int verbs_rail_check_blob(const struct verbs_rail *rail, const struct verbs_blob *b, char *why,
			  size_t size)
{
	if (b->magic != VERBS_BLOB_MAGIC || b->version != VERBS_BLOB_VERSION) {
		snprintf(why, size,
			 "the peer speaks version %u of the verbs transport, we speak %u",
			 b->version, VERBS_BLOB_VERSION);
		return -EPROTO;
	}
	if (b->rail != rail->index || b->nqps < 2 || b->nqps > VERBS_QPS_MAX || b->mtu < 256 ||
	    b->mtu > 4096 || b->credits < 8 || b->credits > 4096 || b->tickets == 0 ||
	    b->tickets > VERBS_TICKET_MAX || b->frame < 4096 || b->frame > 2u << 20 ||
	    b->fragment < 64 || b->fragment % 64 != 0 ||
	    memchr(b->device, '\0', sizeof(b->device)) == NULL) {
		snprintf(why, size, "what the peer says of its end of rail %u cannot be",
			 rail->index);
		return -EPROTO;
	}
	return 0;
}

static int start_trial(struct verbs_rail *rail)
{
	struct verbs *v = rail->peer->v;
	struct verbs_frame *f = verbs_frame_get(v, true);
	uint32_t length = rail->peer->body_max;

	if (!f) {
		return -ENOBUFS;
	}
	rail->state = VERBS_RAIL_PROBING;
	rail->deadline = v->now + v->options.probe_ms * CLOCK_NS_PER_MS;
	rail->probe_acked = false;
	rail->probes = rail->nqps - 1;
	verbs_frame_start(f, VERBS_PROBE, length)->epoch = rail->epoch;
	memset(verbs_frame_body(f), 0, length);
	verbs_frame_post(rail, f);
	for (uint32_t i = 1; i < rail->nqps; i++) {
		struct ibv_send_wr *wr = verbs_qp_push(rail->qps[i], VERBS_ENTRY_PROBE, NULL, true);

		wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		wr->imm_data = htonl(VERBS_IMM_PROBE);
	}
	return 0;
}

int verbs_rail_left(struct verbs_rail *rail, char *why, size_t size)
{
	int r = verbs_peer_prepare(rail->peer, &rail->remote);

	snprintf(why, size, "%s", rail->reason);
	/* Only now may the other end hear of it. */
	verbs_peer_dirty(rail->peer);
	return r < 0 ? r : -ECANCELED;
}

int verbs_rail_start(struct verbs_rail *rail, char *why, size_t size)
{
	struct verbs_peer *peer = rail->peer;
	int r;

	r = verbs_peer_prepare(peer, &rail->remote);
	if (r < 0) {
		snprintf(why, size, "out of memory, or the peer's rails disagree");
		return r;
	}
	while (rail->nqps > rail->remote.nqps) {
		rail->nqps--;
		rail->qps[rail->nqps] = verbs_qp_free(rail->qps[rail->nqps]);
	}
	rail->mtu = MIN(rail->local.mtu, rail->remote.mtu);
	for (uint32_t i = 0; i < rail->nqps; i++) {
		r = verbs_qp_connect(rail->qps[i], rail->mtu, why, size);
		if (r < 0) {
			return r;
		}
	}
	rail->credits = rail->remote.credits;
	r = start_trial(rail);
	if (r < 0) {
		snprintf(why, size, "no frame for the trial");
	}
	return r;
}
