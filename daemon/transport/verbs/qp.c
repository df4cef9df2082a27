/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Verbs backend: queue pairs, their work requests and completions
 *
 * Receives of the message queue pair have a buffer each; those of bulk queue pairs have none, for
 * they only carry immediates. There are always enough: credits bound the frames, tickets the
 * writes. So the device's own answer to a missing receive (RNR) is never needed.
 *
 * Thread: the progress thread that owns the context      Owns: queue pairs      Locks: none
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "transport/verbs/verbs_impl.h"

#define SERIAL_MASK 0x7fffffffu
#define HANDLE_BITS 14 /* of the index */

static_assert(1 << HANDLE_BITS == VERBS_QP_TABLE, "fits");

static uint32_t pow2(uint32_t n)
{
	uint32_t p = 1;

	while (p < n) {
		p *= 2;
	}
	return p;
}

static uint64_t wr_id(const struct verbs_qp *qp, enum verbs_wr_kind kind, uint32_t serial)
{
	return (uint64_t)qp->handle << 32 | (uint64_t)kind << 31 | (serial & SERIAL_MASK);
}

static int handle_new(struct verbs *v, struct verbs_qp *qp)
{
	for (uint32_t i = 0; i < VERBS_QP_TABLE; i++) {
		uint32_t at = v->next_qp++ % VERBS_QP_TABLE;

		if (!v->qps[at].qp) {
			v->qps[at].qp = qp;
			v->qps[at].generation++;
			qp->handle = (uint32_t)v->qps[at].generation << HANDLE_BITS | at;
			return 0;
		}
	}
	return -ENOSPC;
}

static struct verbs_qp *handle_find(struct verbs *v, uint32_t handle)
{
	struct verbs_qp_slot *slot = &v->qps[handle % VERBS_QP_TABLE];

	return slot->qp && slot->qp->handle == handle ? slot->qp : NULL;
}

static int make_rings(struct verbs_qp *qp, const struct verbs_options *o)
{
	uint32_t sends = qp->index == 0 ? 2 * o->credits : o->bulk_depth + 2;

	qp->nbuffers = qp->index == 0 ? o->credits : o->tickets + 4 + VERBS_SPARE;
	qp->sq_size = pow2(sends);
	qp->rq_size = pow2(2 * qp->nbuffers);
	qp->sq = calloc(qp->sq_size, sizeof(*qp->sq));
	qp->rq = calloc(qp->rq_size, sizeof(*qp->rq));
	qp->free = calloc(qp->nbuffers, sizeof(*qp->free));
	if (!qp->sq || !qp->rq || !qp->free) {
		return err_origin(-ENOMEM);
	}
	for (uint32_t i = 0; i < qp->nbuffers; i++) {
		qp->free[qp->nfree++] = (uint16_t)i;
	}
	return 0;
}

static void explain_create(const struct verbs_qp *qp, int error, char *why, size_t size)
{
	const struct verbs_dev *dev = qp->rail->dev;
	char hint[160] = "";

	/* With none left memory is not the cause. */
	if (error == ENOMEM && dev->qps < (uint32_t)MAX(dev->device->attr.max_qp, 1)) {
		hint[0] = ';';
		hint[1] = ' ';
		rdma_memlock_hint(qp->sq_size * 256, hint + 2, sizeof(hint) - 2);
	}
	snprintf(
		why, size,
		"%s: cannot make a queue pair (%u are in use here, the device has %d; %u sends and "
		"%u receives, the device allows %d): %s%s",
		dev->device->name, dev->qps, dev->device->attr.max_qp, qp->sq_size, qp->nbuffers,
		dev->device->attr.max_qp_wr, strerror(error), hint);
}

static int create(struct verbs_qp *qp, const struct verbs_options *o, char *why, size_t size)
{
	struct verbs_dev *dev = qp->rail->dev;
	struct ibv_qp_init_attr attr = {
		.send_cq = qp->cq->cq,
		.recv_cq = qp->cq->cq,
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = qp->sq_size,
			.max_recv_wr = qp->nbuffers,
			.max_send_sge = (uint32_t)MIN(VERBS_SGE, MAX(dev->device->attr.max_sge, 1)),
			.max_recv_sge = 1},
	};
	uint32_t inlines[] = {o->inline_max, 220, 96, 64, 0};

	/* How much a device takes inline is known only by trying. */
	for (size_t i = 0; !qp->qp && i < ARRAY_SIZE(inlines); i++) {
		if (qp->index == 0 ? inlines[i] <= o->inline_max : inlines[i] == 0) {
			attr.cap.max_inline_data = inlines[i];
			errno = 0;
			qp->qp = dev->api->create_qp(dev->device->pd, &attr);
		}
	}
	if (!qp->qp) {
		int r = errno ? errno : EIO;

		explain_create(qp, r, why, size);
		return -r;
	}
	qp->inline_max = attr.cap.max_inline_data;
	return 0;
}

static int to_init(struct verbs_qp *qp, char *why, size_t size)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = qp->rail->port,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
	};
	int r = qp->rail->dev->api->modify_qp(qp->qp, &attr,
					      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						      IBV_QP_ACCESS_FLAGS);

	if (r) {
		snprintf(why, size, "%s port %u: cannot initialise a queue pair: %s",
			 qp->rail->dev->device->name, qp->rail->port, strerror(r));
	}
	return -r;
}

/**
 * verbs_qp_new() - make a queue pair, in INIT, with receives posted
 * @rail:  borrowed
 * @index: in the rail; 0: for messages
 * @ret:   new queue pair, set on success only
 * @why:   a sentence when it fails
 * @size:  of why
 *
 * Return: 0, or negative errno.
 */
int verbs_qp_new(struct verbs_rail *rail, uint32_t index, struct verbs_qp **ret, char *why,
		 size_t size)
{
	struct verbs *v = rail->peer->v;
	struct verbs_qp *qp = calloc(1, sizeof(*qp));
	int r;

	if (!qp) {
		return err_origin(-ENOMEM);
	}
	qp->rail = rail;
	qp->index = index;
	qp->sq_since = v->now;
	list_init(&qp->flush);
	snprintf(why, size, "out of memory");
	r = make_rings(qp, &v->options);
	if (r == 0) {
		r = handle_new(v, qp);
	}
	if (r == 0) {
		r = verbs_cq_reserve(rail->dev, qp->sq_size + qp->nbuffers, &qp->cq, why, size);
	}
	if (r == 0) {
		qp->reserved = qp->sq_size + qp->nbuffers;
		r = create(qp, &v->options, why, size);
	}
	if (r == 0) {
		rail->dev->qps++;
		r = to_init(qp, why, size);
	}
	if (r < 0) {
		verbs_qp_free(qp);
		return r;
	}
	verbs_qp_refill(qp);
	*ret = qp;
	return 0;
}

void verbs_qp_close(struct verbs_qp *qp)
{
	struct verbs *v = qp->rail->peer->v;

	list_remove(&qp->flush);
	qp->nwrs = 0;
	if (qp->qp) {
		qp->rail->dev->api->destroy_qp(qp->qp);
		qp->rail->dev->qps--;
		qp->qp = NULL;
	}
	if (qp->cq) {
		qp->cq->reserved -= qp->reserved;
		qp->cq = NULL;
	}
	if (v->qps[qp->handle % VERBS_QP_TABLE].qp == qp) {
		v->qps[qp->handle % VERBS_QP_TABLE].qp = NULL;
	}
}

struct verbs_qp *verbs_qp_free(struct verbs_qp *qp)
{
	if (!qp) {
		return NULL;
	}
	verbs_qp_close(qp);
	free(qp->sq);
	free(qp->rq);
	free(qp->free);
	free(qp);
	return NULL;
}

/*
 * The UDP source port comes from the flow label (low 14 bits folded with the high ones), and with
 * it the path through ECMP and LAG: each queue pair of a rail has its own.
 */
uint32_t verbs_qp_flow_label(const struct verbs_rail *rail, uint32_t index)
{
	uint32_t hash = 2166136261u;

	for (int i = 0; i < 16; i++) {
		hash = (hash ^ rail->gid.raw[i]) * 16777619u;
		hash = (hash ^ rail->remote.gid[i]) * 16777619u;
	}
	/* A step of about a fifth of the range; never 0, which leaves the choice to the device. */
	return 1 + (hash % 0x3fff + index * 0xccd) % 0x3fff;
}

static enum ibv_mtu mtu_code(uint32_t bytes)
{
	enum ibv_mtu mtu = IBV_MTU_256;

	while (mtu < IBV_MTU_4096 && (256u << mtu) <= bytes) {
		mtu++;
	}
	return mtu;
}

static int to_rtr(struct verbs_qp *qp, uint32_t mtu)
{
	const struct verbs_rail *rail = qp->rail;
	const struct verbs_options *o = &rail->peer->v->options;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = mtu_code(mtu),
		.dest_qp_num = rail->remote.qpn[qp->index],
		.rq_psn = rail->remote.psn[qp->index],
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = o->rnr_timer,
		.ah_attr = {.is_global = 1,
			    .dlid = rail->remote.lid,
			    .sl = o->service_level,
			    .port_num = rail->port,
			    .grh = {.flow_label = verbs_qp_flow_label(rail, qp->index),
				    .sgid_index = (uint8_t)rail->gid_index,
				    .hop_limit = o->hop_limit,
				    .traffic_class = o->traffic_class}},
	};

	memcpy(attr.ah_attr.grh.dgid.raw, rail->remote.gid, sizeof(rail->remote.gid));
	return rail->dev->api->modify_qp(qp->qp, &attr,
					 IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
						 IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static int to_rts(struct verbs_qp *qp)
{
	const struct verbs_rail *rail = qp->rail;
	const struct verbs_options *o = &rail->peer->v->options;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = rail->local.psn[qp->index],
		.timeout = o->timeout,
		.retry_cnt = o->retry,
		.rnr_retry = o->rnr_retry,
		.max_rd_atomic = 1,
	};

	return rail->dev->api->modify_qp(qp->qp, &attr,
					 IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
						 IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						 IBV_QP_MAX_QP_RD_ATOMIC);
}

int verbs_qp_connect(struct verbs_qp *qp, uint32_t mtu, char *why, size_t size)
{
	char from[INET6_ADDRSTRLEN], to[INET6_ADDRSTRLEN];
	union ibv_gid remote;
	int r = to_rtr(qp, mtu);

	if (r == 0) {
		r = to_rts(qp);
	}
	if (r) {
		memcpy(remote.raw, qp->rail->remote.gid, 16);
		rdma_gid_text(&qp->rail->gid, from);
		rdma_gid_text(&remote, to);
		snprintf(why, size,
			 "%s port %u: cannot connect a queue pair from GID %s (index %u) to %s: "
			 "%s%s",
			 qp->rail->dev->device->name, qp->rail->port, from, qp->rail->gid_index, to,
			 strerror(r),
			 r == ETIMEDOUT || r == EHOSTUNREACH || r == ENETUNREACH
				 ? "; the address does not answer on that interface"
				 : "");
	}
	return -r;
}

/* What was not posted yet is not posted any more; it stays in the ring like what was. */
void verbs_qp_error(struct verbs_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	qp->nwrs = 0;
	list_remove(&qp->flush);
	if (qp->qp) {
		qp->rail->dev->api->modify_qp(qp->qp, &attr, IBV_QP_STATE);
	}
}

enum ibv_qp_state verbs_qp_state(const struct verbs_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr = {0};

	if (!qp->qp || qp->rail->dev->api->query_qp(qp->qp, &attr, IBV_QP_STATE, &init) != 0) {
		return IBV_QPS_UNKNOWN;
	}
	return attr.qp_state;
}

uint32_t verbs_qp_room(const struct verbs_qp *qp)
{
	return qp->sq_size - (qp->sq_tail - qp->sq_head);
}

struct ibv_send_wr *verbs_qp_push(struct verbs_qp *qp, enum verbs_entry_kind kind, void *object,
				  bool signal)
{
	struct verbs *v = qp->rail->peer->v;
	struct ibv_send_wr *wr;

	assert(verbs_qp_room(qp) > 0);
	if (qp->nwrs == VERBS_BATCH) {
		verbs_qp_flush(qp);
	}
	if (qp->sq_asked == qp->sq_head) {
		qp->sq_since = v->now;
	}
	qp->sq[qp->sq_tail % qp->sq_size] = (struct verbs_entry){kind, object};
	wr = &qp->wrs[qp->nwrs];
	memset(wr, 0, sizeof(*wr));
	wr->wr_id = wr_id(qp, VERBS_WR_SEND, qp->sq_tail++);
	wr->sg_list = qp->sges[qp->nwrs++];
	if (signal) {
		wr->send_flags = IBV_SEND_SIGNALED;
		qp->sq_asked = qp->sq_tail;
	}
	qp->rail->work_requests++;
	list_remove(&qp->flush);
	list_append(&v->flush, &qp->flush);
	return wr;
}

/*
 * Of writes that are posted together the last asks for a completion, and every second one before
 * it: there is room for the next two while the device works on the last.
 */
static void signal_some(struct verbs_qp *qp)
{
	for (uint32_t left = qp->nwrs; qp->index > 0 && left > 0; left--) {
		if ((qp->nwrs - left) % 2 == 1) {
			qp->wrs[left - 1].send_flags &= ~(unsigned int)IBV_SEND_SIGNALED;
		}
	}
}

void verbs_qp_flush(struct verbs_qp *qp)
{
	struct verbs *v = qp->rail->peer->v;
	struct ibv_send_wr *bad = NULL;
	uint32_t n = qp->nwrs;
	int r;

	list_remove(&qp->flush);
	if (n == 0) {
		return;
	}
	signal_some(qp);
	for (uint32_t i = 0; i + 1 < n; i++) {
		qp->wrs[i].next = &qp->wrs[i + 1];
	}
	qp->wrs[n - 1].next = NULL;
	qp->nwrs = 0;
	r = qp->rail->dev->api->post_send(qp->qp, qp->wrs, &bad);
	v->stats.send_wrs += n;
	v->stats.send_doorbells++;
	if (r) {
		verbs_rail_fail(qp->rail, -EIO, "cannot post to queue pair %u: %s", qp->index,
				strerror(r));
	}
}

/* Fewer are not worth a doorbell: what credits and tickets stand for is posted. */
static uint32_t refill_min(const struct verbs_qp *qp)
{
	return qp->index == 0 ? MAX(qp->nbuffers / 8, 1) : VERBS_SPARE;
}

void verbs_qp_refill(struct verbs_qp *qp)
{
	struct verbs_rail *rail = qp->rail;
	struct verbs *v = rail->peer->v;
	struct ibv_recv_wr wrs[VERBS_POLL], *bad = NULL;
	struct ibv_sge sges[VERBS_POLL];
	uint32_t n;
	int r;

	if (qp->nfree < refill_min(qp)) {
		return;
	}
	while (qp->qp && qp->nfree > 0 && qp->rq_posted - qp->rq_oldest < qp->rq_size) {
		for (n = 0;
		     n < VERBS_POLL && qp->nfree > 0 && qp->rq_posted - qp->rq_oldest < qp->rq_size;
		     n++) {
			uint16_t buffer = qp->free[--qp->nfree];

			memset(&wrs[n], 0, sizeof(wrs[n]));
			wrs[n].wr_id = wr_id(qp, VERBS_WR_RECV, qp->rq_posted);
			if (qp->index == 0) {
				sges[n].addr = (uintptr_t)rail->rx + 32 +
					       (uint64_t)buffer * v->frame_stride;
				sges[n].length = v->frame_size;
				sges[n].lkey = rail->rx_mr->lkey;
				wrs[n].sg_list = &sges[n];
				wrs[n].num_sge = 1;
			}
			if (n > 0) {
				wrs[n - 1].next = &wrs[n];
			}
			qp->rq[qp->rq_posted++ % qp->rq_size] =
				(struct verbs_rq_entry){buffer, false};
		}
		r = rail->dev->api->post_recv(qp->qp, wrs, &bad);
		v->stats.recv_wrs += n;
		v->stats.recv_doorbells++;
		rail->owed += qp->index == 0 ? n : 0;
		if (r) {
			verbs_rail_fail(rail, -EIO, "cannot post receives to queue pair %u: %s",
					qp->index, strerror(r));
			return;
		}
	}
}

static void send_completed(struct verbs *v, struct verbs_qp *qp, uint32_t serial)
{
	struct verbs_rail *rail = qp->rail;
	uint32_t n = ((serial - qp->sq_head) & SERIAL_MASK) + 1;

	if (n > qp->sq_tail - qp->sq_head) {
		v->stats.strays++;
		return;
	}
	qp->sq_since = v->now;
	rail->peer->progress = v->now;
	/* A callback may free the peer, which closes the queue pair. */
	for (; n > 0 && qp->qp; n--) {
		struct verbs_entry *e = &qp->sq[qp->sq_head++ % qp->sq_size];

		rail->acked++;
		switch (e->kind) {
		case VERBS_ENTRY_FRAME:
			verbs_frame_put(v, e->object);
			break;
		case VERBS_ENTRY_WRITE:
			qp->writes_acked++;
			verbs_write_done(rail, e->object);
			break;
		case VERBS_ENTRY_PROBE:
			rail->probes--;
			verbs_rail_probe_done(rail);
			break;
		}
	}
}

static void recv_arrived(struct verbs_qp *qp, uint16_t buffer, const struct ibv_wc *wc)
{
	struct verbs_rail *rail = qp->rail;
	struct verbs_peer *peer = rail->peer;

	peer->progress = peer->v->now;
	rail->arrived++;
	if (qp->index == 0) {
		if (wc->opcode != IBV_WC_RECV) {
			verbs_peer_violation(peer, "a write on the message queue pair");
			return;
		}
		verbs_frame_arrived(rail, rail->rx + 32 + (size_t)buffer * peer->v->frame_stride,
				    wc->byte_len);
		return;
	}
	if (wc->opcode != IBV_WC_RECV_RDMA_WITH_IMM || !(wc->wc_flags & IBV_WC_WITH_IMM)) {
		verbs_peer_violation(peer, "a message on a bulk queue pair");
		return;
	}
	if (ntohl(wc->imm_data) != VERBS_IMM_PROBE) {
		qp->writes_arrived++;
		rail->bytes_received += wc->byte_len;
		verbs_recv_write(peer, ntohl(wc->imm_data), true);
	}
}

static void recv_completed(struct verbs *v, struct verbs_qp *qp, uint32_t serial,
			   const struct ibv_wc *wc)
{
	uint32_t ahead = (serial - qp->rq_oldest) & SERIAL_MASK;
	struct verbs_rq_entry *e = &qp->rq[(qp->rq_oldest + ahead) % qp->rq_size];

	if (ahead >= qp->rq_posted - qp->rq_oldest || e->done) {
		v->stats.strays++;
		return;
	}
	e->done = true;
	if (ahead > 0 && qp->rq_late++ == 0) {
		qp->gap_since = v->now;
	}
	while (qp->rq_oldest != qp->rq_posted && qp->rq[qp->rq_oldest % qp->rq_size].done) {
		qp->rq_late -= ((qp->rq_oldest ^ serial) & SERIAL_MASK) != 0;
		qp->gap_since = v->now;
		qp->rq_oldest++;
	}
	if (wc->status == IBV_WC_SUCCESS && qp->rail->peer->state == VERBS_PEER_OPEN) {
		recv_arrived(qp, e->buffer, wc);
	}
	if (qp->qp) {
		qp->free[qp->nfree++] = e->buffer;
	}
}

/* One completion, whoever it is for. */
void verbs_qp_complete(struct verbs *v, const struct ibv_wc *wc)
{
	struct verbs_qp *qp = handle_find(v, (uint32_t)(wc->wr_id >> 32));
	uint32_t serial = (uint32_t)wc->wr_id & SERIAL_MASK;

	if (!qp) {
		v->stats.strays++;
		return;
	}
	verbs_peer_dirty(qp->rail->peer);
	qp->rail->completions++;
	if (wc->status != IBV_WC_SUCCESS) {
		verbs_rail_wc_failed(qp->rail, qp, wc);
	}
	if (wc->wr_id >> 31 & 1) {
		recv_completed(v, qp, serial, wc);
	} else if (wc->status == IBV_WC_SUCCESS) {
		send_completed(v, qp, serial);
	}
}
