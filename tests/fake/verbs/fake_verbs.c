/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fake verbs: the objects
 *
 * Thread: the test's      Owns: see fake_verbs.h      Locks: none
 */
#include "tests/fake/verbs/fake_verbs.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#include "proto/base.h"
#include "tests/fake/verbs/fake_impl.h"

static struct fake_device *device_of(struct ibv_context *context)
{
	return container_of(context, struct fake_context, context)->device;
}

static struct ibv_device **get_device_list(void *arg, int *n)
{
	struct fake_host *h = arg;
	struct ibv_device **list = calloc(FAKE_DEVICES + 1, sizeof(*list));

	*n = 0;
	for (uint32_t i = 0; i < h->net->ndevices; i++) {
		if (h->net->devices[i]->host == h->index && h->net->devices[i]->present) {
			list[(*n)++] = &h->net->devices[i]->device;
		}
	}
	return list;
}

static void free_device_list(void *arg, struct ibv_device **list)
{
	free(list);
}

static struct ibv_context *open_device(struct ibv_device *device)
{
	struct fake_device *d = container_of(device, struct fake_device, device);
	struct fake_context *c;

	if (d->caps.open_errno) {
		errno = d->caps.open_errno;
		return NULL;
	}
	c = calloc(1, sizeof(*c));
	c->device = d;
	c->context.device = device;
	c->context.async_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
	return &c->context;
}

static int close_device(struct ibv_context *context)
{
	struct fake_context *c = container_of(context, struct fake_context, context);
	struct fake_net *net = c->device->net;

	pthread_mutex_lock(&net->lock);
	close(context->async_fd);
	free(c);
	pthread_mutex_unlock(&net->lock);
	return 0;
}

static int query_device(struct ibv_context *context, struct ibv_device_attr *ret)
{
	const struct fake_caps *c = &device_of(context)->caps;

	memset(ret, 0, sizeof(*ret));
	ret->max_qp = c->max_qp;
	ret->max_qp_wr = c->max_qp_wr;
	ret->max_cq = c->max_cq;
	ret->max_cqe = c->max_cqe;
	ret->max_mr = c->max_mr;
	ret->max_sge = c->max_sge;
	ret->phys_port_cnt = 1;
	return 0;
}

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *ret)
{
	*ret = device_of(context)->port;
	return device_of(context)->present && port == 1 ? 0 : ENODEV;
}

static int query_gid(struct ibv_context *context, uint8_t port, uint32_t index,
		     struct ibv_gid_entry *ret)
{
	const struct fake_gid *g = &device_of(context)->gids[index];

	if (!g->valid) {
		return EINVAL;
	}
	*ret = (struct ibv_gid_entry){.gid = g->gid,
				      .gid_index = index,
				      .port_num = port,
				      .gid_type = g->type,
				      .ndev_ifindex = g->ifindex};
	return 0;
}

static ssize_t query_gids(struct ibv_context *context, struct ibv_gid_entry *ret, size_t max)
{
	size_t n = 0;

	for (uint32_t i = 0; i < FAKE_GIDS && n < max; i++) {
		n += query_gid(context, 1, i, &ret[n]) == 0;
	}
	return (ssize_t)n;
}

static int netdev(void *arg, uint32_t ifindex, struct verbs_netdev *ret)
{
	memset(ret, 0, sizeof(*ret));
	snprintf(ret->name, sizeof(ret->name), "eth%u", ifindex % 100);
	ret->vlan = (uint16_t)(ifindex / 100);
	return 0;
}

static int read_file(void *arg, const char *path, char *buf, size_t size)
{
	snprintf(buf, size, "1");
	return strstr(path, "numa_node") ? 0 : -ENOENT;
}

static int read_link(void *arg, const char *path, char *buf, size_t size)
{
	snprintf(buf, size, "../../../0000:3b:00.0");
	return 0;
}

static int get_async_event(struct ibv_context *context, struct ibv_async_event *ret)
{
	struct fake_device *d = device_of(context);
	struct fake_net *net = d->net;

	for (uint32_t i = 0; i < net->nevents; i++) {
		if (net->events[i].device == d) {
			*ret = net->events[i].event;
			net->nevents--;
			memmove(&net->events[i], &net->events[i + 1],
				(net->nevents - i) * sizeof(net->events[0]));
			return 0;
		}
	}
	errno = EAGAIN;
	return -1;
}

static void ack_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
}

static struct ibv_pd *alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = calloc(1, sizeof(*pd));

	pd->context = context;
	return pd;
}

static int dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	return 0;
}

/* With the lock. */
static void hold(struct fake_device *d, size_t size)
{
	d->mr_view.waiting++;
	while (d->hold && size >= d->hold) {
		pthread_cond_wait(&d->net->held, &d->net->lock);
	}
	d->mr_view.waiting--;
}

void fake_verbs_hold(struct fake_device *d, size_t size)
{
	pthread_mutex_lock(&d->net->lock);
	d->hold = size;
	pthread_cond_broadcast(&d->net->held);
	pthread_mutex_unlock(&d->net->lock);
}

void fake_verbs_mrs(struct fake_device *d, struct fake_mr_view *ret)
{
	pthread_mutex_lock(&d->net->lock);
	*ret = d->mr_view;
	ret->registered = d->mrs;
	pthread_mutex_unlock(&d->net->lock);
}

static int reg_error(const struct fake_device *d, size_t size, unsigned int access, bool dmabuf)
{
	const struct fake_caps *c = &d->caps;

	if (c->relaxed_errno && access & IBV_ACCESS_RELAXED_ORDERING) {
		return c->relaxed_errno;
	}
	if (dmabuf ? c->dmabuf_errno : c->reg_errno) {
		return dmabuf ? c->dmabuf_errno : c->reg_errno;
	}
	if (c->max_pinned && d->mr_view.bytes + size > c->max_pinned) {
		return ENOMEM;
	}
	return d->mrs >= c->max_mr ? ENOMEM : 0;
}

static struct ibv_mr *reg(struct ibv_pd *pd, void *base, size_t size, unsigned int access,
			  bool dmabuf)
{
	struct fake_device *d = device_of(pd->context);
	struct fake_mr *m = calloc(1, sizeof(*m));
	int error;

	pthread_mutex_lock(&d->net->lock);
	d->mr_view.calls++;
	d->mr_view.access = access;
	hold(d, size);
	error = reg_error(d, size, access, dmabuf);
	if (!error) {
		m->device = d;
		m->access = access;
		m->dmabuf = dmabuf;
		m->mr.addr = base;
		m->mr.length = size;
		m->mr.lkey = m->mr.rkey = d->net->next_key++;
		d->mrs++;
		d->mr_view.dmabufs += dmabuf;
		d->mr_view.bytes += size;
		list_append(&d->net->mrs, &m->link);
	}
	pthread_mutex_unlock(&d->net->lock);
	if (error) {
		free(m);
		errno = error;
		return NULL;
	}
	return &m->mr;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *base, size_t size, unsigned int access)
{
	return reg(pd, base, size, access, false);
}

static struct ibv_mr *reg_dmabuf(struct ibv_pd *pd, uint64_t offset, size_t size, uint64_t iova,
				 int fd, unsigned int access)
{
	return reg(pd, (void *)(uintptr_t)iova, size, access, true);
}

static int dereg_mr(struct ibv_mr *mr)
{
	struct fake_mr *m = container_of(mr, struct fake_mr, mr);
	struct fake_net *net = m->device->net;

	pthread_mutex_lock(&net->lock);
	hold(m->device, mr->length);
	list_remove(&m->link);
	m->device->mrs--;
	m->device->mr_view.dmabufs -= m->dmabuf;
	m->device->mr_view.bytes -= mr->length;
	pthread_mutex_unlock(&net->lock);
	free(m);
	return 0;
}

static struct ibv_comp_channel *create_channel(struct ibv_context *context)
{
	struct fake_channel *c = calloc(1, sizeof(*c));

	c->channel.context = context;
	c->channel.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
	return &c->channel;
}

static int destroy_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	free(container_of(channel, struct fake_channel, channel));
	return 0;
}

static struct ibv_cq *create_cq(struct ibv_context *context, int entries, void *user,
				struct ibv_comp_channel *channel)
{
	struct fake_device *d = device_of(context);
	struct fake_cq *c;

	if (d->cqs >= d->caps.max_cq || entries > d->caps.max_cqe) {
		errno = d->cqs >= d->caps.max_cq ? ENOMEM : EINVAL;
		return NULL;
	}
	c = calloc(1, sizeof(*c));
	c->device = d;
	c->cq.context = context;
	c->cq.channel = channel;
	c->cq.cqe = entries;
	c->wc = calloc((size_t)entries, sizeof(*c->wc));
	d->cqs++;
	return &c->cq;
}

static int destroy_cq(struct ibv_cq *cq)
{
	struct fake_cq *c = container_of(cq, struct fake_cq, cq);

	if (c->device->net->mangler.held_for == c) {
		c->device->net->mangler.held_for = NULL;
	}
	c->device->cqs--;
	free(c->wc);
	free(c);
	return 0;
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *ret)
{
	struct fake_cq *c = container_of(cq, struct fake_cq, cq);
	int got = 0;

	while (got < n && c->count > 0) {
		ret[got++] = c->wc[c->head++ % (uint32_t)cq->cqe];
		c->count--;
	}
	return got;
}

static int notify_cq(struct ibv_cq *cq)
{
	container_of(cq, struct fake_cq, cq)->armed = true;
	return 0;
}

static int get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **ret)
{
	struct fake_channel *c = container_of(channel, struct fake_channel, channel);
	uint64_t one;

	if (c->events == 0) {
		errno = EAGAIN;
		return -1;
	}
	assert(read(channel->fd, &one, sizeof(one)) == sizeof(one));
	*ret = c->cq[0];
	memmove(c->cq, c->cq + 1, --c->events * sizeof(c->cq[0]));
	return 0;
}

static void ack_cq_events(struct ibv_cq *cq, unsigned int n)
{
}

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct fake_device *d = device_of(pd->context);
	struct fake_qp *q;

	if (d->qps >= d->caps.max_qp || attr->cap.max_inline_data > d->caps.max_inline ||
	    attr->cap.max_send_wr > (uint32_t)d->caps.max_qp_wr ||
	    attr->cap.max_recv_wr > (uint32_t)d->caps.max_qp_wr) {
		errno = d->qps >= d->caps.max_qp ? ENOMEM : EINVAL;
		return NULL;
	}
	q = calloc(1, sizeof(*q));
	q->device = d;
	q->cap = attr->cap;
	q->qp.context = pd->context;
	q->qp.pd = pd;
	q->qp.send_cq = attr->send_cq;
	q->qp.recv_cq = attr->recv_cq;
	q->qp.qp_num = d->net->next_qpn++;
	q->rq = calloc(attr->cap.max_recv_wr, sizeof(*q->rq));
	list_init(&q->sq);
	list_append(&d->net->qps, &q->link);
	d->qps++;
	return &q->qp;
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	struct fake_qp *q = container_of(qp, struct fake_qp, qp);

	assert(mask & IBV_QP_STATE);
	switch (attr->qp_state) {
	case IBV_QPS_INIT:
		assert(qp->state == IBV_QPS_RESET);
		break;
	case IBV_QPS_RTR:
		assert(qp->state == IBV_QPS_INIT);
		if (q->device->caps.rtr_errno) {
			return q->device->caps.rtr_errno;
		}
		if (!q->device->gids[attr->ah_attr.grh.sgid_index].valid) {
			return EINVAL;
		}
		q->attr = *attr;
		break;
	case IBV_QPS_RTS:
		assert(qp->state == IBV_QPS_RTR);
		assert(attr->retry_cnt < 7 && attr->rnr_retry < 7 && attr->timeout > 0);
		q->attr.timeout = attr->timeout;
		q->attr.retry_cnt = attr->retry_cnt;
		break;
	default:
		if (qp->state != IBV_QPS_ERR) {
			fake_qp_error(q);
		}
		break;
	}
	qp->state = attr->qp_state;
	return 0;
}

static int query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
		    struct ibv_qp_init_attr *init)
{
	attr->qp_state = qp->state;
	return 0;
}

static int destroy_qp(struct ibv_qp *qp)
{
	struct fake_qp *q = container_of(qp, struct fake_qp, qp);
	struct list *l;

	while ((l = list_first(&q->sq))) {
		struct fake_wr *w = container_of(l, struct fake_wr, link);

		list_remove(l);
		w->qp = NULL;
		if (w->phase != FAKE_IN_NETWORK) {
			fake_wr_free(w);
		}
	}
	list_remove(&q->link);
	q->device->qps--;
	free(q->rq);
	free(q);
	return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct fake_qp *q = container_of(qp, struct fake_qp, qp);

	for (; wr; wr = wr->next) {
		struct fake_wr *w;

		*bad = wr;
		if (q->nsq >= q->cap.max_send_wr ||
		    (qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_ERR)) {
			return q->nsq >= q->cap.max_send_wr ? ENOMEM : EINVAL;
		}
		w = calloc(1, sizeof(*w));
		list_init(&w->net);
		w->qp = q;
		w->from = q->device;
		w->wr_id = wr->wr_id;
		w->flags = wr->send_flags;
		w->opcode = wr->opcode;
		w->imm = wr->imm_data;
		w->rkey = wr->wr.rdma.rkey;
		w->addr = wr->wr.rdma.remote_addr;
		w->nsge = wr->num_sge;
		assert(wr->num_sge <= (int)q->cap.max_send_sge);
		memcpy(w->sge, wr->sg_list, (size_t)wr->num_sge * sizeof(w->sge[0]));
		if (wr->send_flags & IBV_SEND_INLINE) {
			assert(wr->num_sge == 1 && w->sge[0].length <= q->cap.max_inline_data);
			w->size = w->sge[0].length;
			w->data = malloc(w->size);
			memcpy(w->data, (void *)(uintptr_t)w->sge[0].addr, w->size);
		}
		list_append(&q->sq, &w->link);
		q->nsq++;
	}
	if (qp->state == IBV_QPS_ERR) {
		fake_qp_error(q);
	}
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct fake_qp *q = container_of(qp, struct fake_qp, qp);

	for (; wr; wr = wr->next) {
		struct fake_recv *r;

		*bad = wr;
		if (q->rq_count >= q->cap.max_recv_wr) {
			return ENOMEM;
		}
		r = &q->rq[(q->rq_head + q->rq_count++) % q->cap.max_recv_wr];
		r->wr_id = wr->wr_id;
		r->has_buffer = wr->num_sge == 1;
		memset(&r->sge, 0, sizeof(r->sge));
		if (wr->num_sge == 1) {
			r->sge = wr->sg_list[0];
		}
	}
	if (qp->state == IBV_QPS_ERR) {
		fake_qp_error(q);
	}
	return 0;
}

const struct verbs_api fake_table = {
	.get_device_list = get_device_list,
	.free_device_list = free_device_list,
	.open_device = open_device,
	.close_device = close_device,
	.query_device = query_device,
	.query_port = query_port,
	.query_gid = query_gid,
	.query_gids = query_gids,
	.netdev = netdev,
	.read_file = read_file,
	.read_link = read_link,
	.get_async_event = get_async_event,
	.ack_async_event = ack_async_event,
	.alloc_pd = alloc_pd,
	.dealloc_pd = dealloc_pd,
	.reg_mr = reg_mr,
	.reg_dmabuf = reg_dmabuf,
	.dereg_mr = dereg_mr,
	.create_channel = create_channel,
	.destroy_channel = destroy_channel,
	.create_cq = create_cq,
	.destroy_cq = destroy_cq,
	.poll_cq = poll_cq,
	.notify_cq = notify_cq,
	.get_cq_event = get_cq_event,
	.ack_cq_events = ack_cq_events,
	.create_qp = create_qp,
	.modify_qp = modify_qp,
	.query_qp = query_qp,
	.destroy_qp = destroy_qp,
	.post_send = post_send,
	.post_recv = post_recv,
};
