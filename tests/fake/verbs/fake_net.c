/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fake verbs: what moves
 *
 * Thread: the test's      Owns: nothing      Locks: none
 */
#include <assert.h>
#include <arpa/inet.h>
#include <string.h>

#include "proto/base.h"
#include "tests/fake/verbs/fake_impl.h"

void fake_wr_free(struct fake_wr *w)
{
	list_remove(&w->link);
	list_remove(&w->net);
	free(w->data);
	free(w);
}

static void add_completion(struct fake_cq *cq, const struct ibv_wc *wc)
{
	struct fake_channel *channel = (struct fake_channel *)cq->cq.channel;

	assert(cq->count < (uint32_t)cq->cq.cqe);
	cq->wc[(cq->head + cq->count++) % (uint32_t)cq->cq.cqe] = *wc;
	if (cq->armed && channel) {
		uint64_t one = 1;

		assert(channel->events < ARRAY_SIZE(channel->cq));
		cq->armed = false;
		channel->cq[channel->events++] = &cq->cq;
		assert(write(channel->channel.fd, &one, sizeof(one)) == sizeof(one));
	}
}

void fake_complete(struct fake_cq *cq, const struct ibv_wc *wc, bool receive)
{
	struct fake_net *net = cq->device->net;
	struct fake_mangler *m = &net->mangler;

	if (m->what == FAKE_KEEP || m->device != cq->device || m->receive != receive ||
	    (m->left > 0 && m->left-- > 0)) {
		add_completion(cq, wc);
		return;
	}
	switch (m->what) {
	case FAKE_DOUBLE:
		add_completion(cq, wc);
		add_completion(cq, wc);
		break;
	case FAKE_SWAP:
		if (!m->held_for) {
			m->held = *wc;
			m->held_for = cq;
			return;
		}
		add_completion(cq, wc);
		add_completion(m->held_for, &m->held);
		m->held_for = NULL;
		break;
	default:
		break;
	}
	m->what = FAKE_KEEP;
}

static struct fake_mr *find_mr(struct fake_device *d, uint32_t key)
{
	list_for_each (l, &d->net->mrs) {
		struct fake_mr *m = container_of(l, struct fake_mr, link);

		if (m->device == d && m->mr.lkey == key) {
			return m;
		}
	}
	return NULL;
}

struct fake_mr *fake_mr_find(struct fake_device *d, uint32_t key, uint64_t addr, uint64_t size,
			     unsigned int access)
{
	struct fake_mr *m;
	uint64_t base;

	pthread_mutex_lock(&d->net->lock);
	m = find_mr(d, key);
	if (m) {
		base = (uintptr_t)m->mr.addr;
		if ((m->access & access) != access || addr < base || size > m->mr.length ||
		    addr - base > m->mr.length - size) {
			m = NULL;
		}
	}
	pthread_mutex_unlock(&d->net->lock);
	return m;
}

static void complete_send(struct fake_qp *qp, const struct fake_wr *w, enum ibv_wc_status status)
{
	struct ibv_wc wc = {.wr_id = w->wr_id, .status = status, .qp_num = qp->qp.qp_num};

	wc.opcode = w->opcode == IBV_WR_SEND ? IBV_WC_SEND : IBV_WC_RDMA_WRITE;
	if (status != IBV_WC_SUCCESS || w->flags & IBV_SEND_SIGNALED) {
		fake_complete(container_of(qp->qp.send_cq, struct fake_cq, cq), &wc, false);
	}
}

void fake_qp_error(struct fake_qp *qp)
{
	struct fake_cq *recv_cq = container_of(qp->qp.recv_cq, struct fake_cq, cq);
	struct list *l;

	qp->qp.state = IBV_QPS_ERR;
	while ((l = list_first(&qp->sq))) {
		struct fake_wr *w = container_of(l, struct fake_wr, link);

		complete_send(qp, w, IBV_WC_WR_FLUSH_ERR);
		list_remove(l);
		qp->nsq--;
		w->qp = NULL;
		if (w->phase != FAKE_IN_NETWORK) {
			fake_wr_free(w); /* else it travels on */
		}
	}
	for (; qp->rq_count > 0; qp->rq_count--) {
		struct fake_recv *r = &qp->rq[qp->rq_head++ % qp->cap.max_recv_wr];
		struct ibv_wc wc = {.wr_id = r->wr_id,
				    .status = IBV_WC_WR_FLUSH_ERR,
				    .opcode = IBV_WC_RECV,
				    .qp_num = qp->qp.qp_num};

		fake_complete(recv_cq, &wc, true);
	}
}

static struct fake_qp *find_target(const struct fake_wr *w)
{
	struct fake_net *net = w->from->net;

	list_for_each (l, &net->qps) {
		struct fake_qp *qp = container_of(l, struct fake_qp, link);
		bool has = false;

		for (int i = 0; i < FAKE_GIDS; i++) {
			has = has || (qp->device->gids[i].valid &&
				      memcmp(&qp->device->gids[i].gid, &w->dgid, 16) == 0);
		}
		if (has && qp->device->link && qp->device->present && qp->qp.qp_num == w->dest &&
		    qp->attr.dest_qp_num == w->src &&
		    (qp->qp.state == IBV_QPS_RTR || qp->qp.state == IBV_QPS_RTS)) {
			return qp;
		}
	}
	return NULL;
}

/* Into the memory of the other end. Return: what the sender will be told. */
static enum ibv_wc_status place(struct fake_wr *w, struct fake_qp *to)
{
	struct ibv_wc wc = {.status = IBV_WC_SUCCESS, .qp_num = to->qp.qp_num};
	bool imm = w->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	struct fake_recv *r = NULL;

	if (w->opcode == IBV_WR_SEND || imm) {
		if (to->rq_count == 0) {
			to->device->net->rnr++;
			return IBV_WC_RNR_RETRY_EXC_ERR;
		}
		r = &to->rq[to->rq_head % to->cap.max_recv_wr];
	}
	if (w->opcode == IBV_WR_SEND) {
		if (w->size > (r->has_buffer ? r->sge.length : 0) ||
		    !fake_mr_find(to->device, r->sge.lkey, r->sge.addr, w->size,
				  IBV_ACCESS_LOCAL_WRITE)) {
			fake_qp_error(to);
			return IBV_WC_REM_INV_REQ_ERR;
		}
		memcpy((void *)(uintptr_t)r->sge.addr, w->data, w->size);
		wc.opcode = IBV_WC_RECV;
	} else if (w->size > 0) {
		if (!fake_mr_find(to->device, w->rkey, w->addr, w->size, IBV_ACCESS_REMOTE_WRITE)) {
			fake_qp_error(to);
			return IBV_WC_REM_ACCESS_ERR;
		}
		memcpy((void *)(uintptr_t)w->addr, w->data, w->size);
	}
	if (r) {
		wc.wr_id = r->wr_id;
		wc.byte_len = w->size;
		if (imm) {
			wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
			wc.wc_flags = IBV_WC_WITH_IMM;
			wc.imm_data = w->imm;
		}
		to->rq_head++;
		to->rq_count--;
		fake_complete(container_of(to->qp.recv_cq, struct fake_cq, cq), &wc, true);
	}
	w->from->bytes += w->size;
	w->from->sends += w->opcode == IBV_WR_SEND;
	w->from->writes += w->opcode != IBV_WR_SEND;
	return IBV_WC_SUCCESS;
}

/* The memory is read when the packet leaves. */
static void leave(struct fake_qp *qp, struct fake_wr *w)
{
	uint32_t at = 0;

	if (!(w->flags & IBV_SEND_INLINE)) {
		for (int i = 0; i < w->nsge; i++) {
			w->size += w->sge[i].length;
		}
		w->data = w->size ? malloc(w->size) : NULL;
		for (int i = 0; i < w->nsge; i++) {
			assert(fake_mr_find(qp->device, w->sge[i].lkey, w->sge[i].addr,
					    w->sge[i].length, 0));
			memcpy(w->data + at, (void *)(uintptr_t)w->sge[i].addr, w->sge[i].length);
			at += w->sge[i].length;
		}
	}
	w->dgid = qp->attr.ah_attr.grh.dgid;
	w->dest = qp->attr.dest_qp_num;
	w->src = qp->qp.qp_num;
	w->phase = FAKE_IN_NETWORK;
	list_append(&qp->device->net->network, &w->net);
}

/* Is an earlier one of the same connection still on its way? */
static bool overtakes(const struct fake_wr *w)
{
	list_for_each (l, &w->from->net->network) {
		const struct fake_wr *o = container_of(l, struct fake_wr, net);

		if (o == w) {
			return false;
		}
		if (o->from == w->from && o->src == w->src && o->dest == w->dest) {
			return true;
		}
	}
	return false;
}

static bool arrive(struct fake_wr *w)
{
	struct fake_qp *to;

	if (overtakes(w)) {
		return false;
	}
	if (w->from->stalled || (w->from->swallow_above && w->size > w->from->swallow_above)) {
		return false;
	}
	to = w->from->link || !w->qp ? find_target(w) : NULL;
	if (!to) {
		/* A sender that is there tries again; nobody does for one that is gone. */
		if (!w->qp) {
			fake_wr_free(w);
		} else if (w->qp->retries++ > FAKE_RETRIES) {
			struct fake_qp *qp = w->qp;

			complete_send(qp, w, IBV_WC_RETRY_EXC_ERR);
			qp->nsq--;
			fake_wr_free(w);
			fake_qp_error(qp);
		}
		return true;
	}
	w->status = place(w, to);
	list_remove(&w->net);
	if (!w->qp) {
		fake_wr_free(w);
		return true;
	}
	w->qp->retries = 0;
	w->qp->bytes += w->size;
	w->phase = FAKE_DELIVERED;
	return true;
}

static bool acknowledge(struct fake_qp *qp, struct fake_wr *w)
{
	enum ibv_wc_status status = w->status;

	if (qp->device->stalled) {
		return false;
	}
	if (!qp->device->link) {
		/* The acknowledgement is lost, and there is nobody to repeat it. */
		if (qp->retries++ <= FAKE_RETRIES) {
			return true;
		}
		status = IBV_WC_RETRY_EXC_ERR;
	}
	complete_send(qp, w, status);
	qp->nsq--;
	fake_wr_free(w);
	if (status != IBV_WC_SUCCESS) {
		fake_qp_error(qp);
	}
	return true;
}

static bool step_qp(struct fake_qp *qp, bool force)
{
	struct fake_net *net = qp->device->net;
	struct fake_wr *queued = NULL, *first;

	if (qp->qp.state != IBV_QPS_RTS || list_empty(&qp->sq) ||
	    (qp->device->slow && fake_verbs_random(net, qp->device->slow) != 0)) {
		return false;
	}
	first = container_of(list_first(&qp->sq), struct fake_wr, link);
	list_for_each (l, &qp->sq) {
		struct fake_wr *w = container_of(l, struct fake_wr, link);

		if (w->phase == FAKE_QUEUED) {
			queued = w;
			break;
		}
	}
	if (queued && (force || fake_verbs_random(net, 2))) {
		leave(qp, queued);
		return true;
	}
	return first->phase == FAKE_DELIVERED && acknowledge(qp, first);
}

static uint32_t count(struct list *head)
{
	uint32_t n = 0;

	list_for_each (l, head) {
		n++;
	}
	return n;
}

static struct list *nth(struct list *head, uint64_t n)
{
	struct list *l = head->next;

	while (n-- > 0) {
		l = l->next;
	}
	return l;
}

/* Whatever can move, for when chance did not find it. */
static bool step_any(struct fake_net *net, uint32_t qps, uint32_t packets)
{
	uint64_t start = fake_verbs_random(net, UINT32_MAX);

	for (uint32_t i = 0; i < packets; i++) {
		struct list *l = nth(&net->network, (start + i) % packets);

		if (arrive(container_of(l, struct fake_wr, net))) {
			return true;
		}
	}
	for (uint32_t i = 0; i < qps; i++) {
		struct list *l = nth(&net->qps, (start + i) % qps);

		if (step_qp(container_of(l, struct fake_qp, link), true)) {
			return true;
		}
	}
	return false;
}

bool fake_verbs_step(struct fake_net *net)
{
	uint32_t qps = count(&net->qps), packets = count(&net->network);

	for (int tries = 0; tries < 4; tries++) {
		uint64_t at = fake_verbs_random(net, qps + packets + 1);

		if (at < qps) {
			if (step_qp(container_of(nth(&net->qps, at), struct fake_qp, link),
				    false)) {
				return true;
			}
		} else if (at < qps + packets) {
			struct list *l = nth(&net->network, at - qps);

			if (arrive(container_of(l, struct fake_wr, net))) {
				return true;
			}
		}
	}
	return step_any(net, qps, packets);
}

uint32_t fake_verbs_in_network(const struct fake_net *net)
{
	return count((struct list *)&net->network);
}
