/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Communicator: storage, window, order of starting, failure
 *
 * Thread: progress (comm_new and comm_free: control)      Owns: see comm.h      Locks: none
 */
#include "engine/comm.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/conn.h"
#include "engine/op.h"
#include "engine/p2p.h"
#include "engine/progress.h"

#define WINDOW LIMIT_COMM_WINDOW

static struct engine_comm **comm_bucket(struct progress *p, uint64_t uid)
{
	return &p->buckets[(uid ^ (uid >> 32)) % PROGRESS_BUCKETS];
}

void comm_insert(struct engine_comm *c)
{
	struct engine_comm **bucket = comm_bucket(c->progress, c->params.uid);

	c->hash_next = *bucket;
	*bucket = c;
	list_append(&c->progress->comms, &c->link);
}

void comm_unlink(struct engine_comm *c)
{
	struct engine_comm **at = comm_bucket(c->progress, c->params.uid);

	while (*at != c) {
		at = &(*at)->hash_next;
	}
	*at = c->hash_next;
	if (c->progress->walk == &c->link) {
		c->progress->walk = c->link.next;
	}
	list_remove(&c->link);
}

struct engine_comm *comm_walk(struct progress *p)
{
	p->walk = p->comms.next;
	return comm_walk_next(p);
}

struct engine_comm *comm_walk_next(struct progress *p)
{
	struct list *at = p->walk;

	if (at == &p->comms) {
		return NULL;
	}
	p->walk = at->next;
	return container_of(at, struct engine_comm, link);
}

struct engine_comm *comm_find(struct progress *p, uint64_t uid)
{
	struct engine_comm *c = *comm_bucket(p, uid);

	while (c && c->params.uid != uid) {
		c = c->hash_next;
	}
	return c;
}

/* Zeroed address space; pages come when they are touched, so big windows cost nothing idle. */
static void *reserve(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static size_t vargs_size(const struct engine_comm *c)
{
	return ((size_t)c->nlocal * 4 + 2) * c->nranks * sizeof(uint64_t);
}

static size_t p2p_rank_size(const struct engine_comm *c)
{
	return sizeof(struct p2p_rank) +
	       (size_t)c->nranks * (sizeof(uint64_t) + 4 * sizeof(uint32_t));
}

static bool comm_allocate(struct engine_comm *c)
{
	c->ops = calloc(WINDOW, sizeof(*c->ops));
	c->posts = reserve(WINDOW * (size_t)c->nlocal * sizeof(*c->posts));
	c->ranks = calloc(c->nlocal, sizeof(*c->ranks));
	c->grants = reserve(WINDOW * (size_t)c->nhosts * sizeof(*c->grants));
	c->grant_lost = calloc(c->nhosts, sizeof(*c->grant_lost));
	c->temp = reserve((size_t)COMM_ACTIVE * COMM_TEMP);
	c->p2ps = reserve(COMM_P2PS * (size_t)c->nlocal * sizeof(*c->p2ps));
	if (!c->ops || !c->posts || !c->ranks || !c->grants || !c->grant_lost || !c->temp ||
	    !c->p2ps || device_comm_init(c) < 0) {
		return false;
	}
	for (uint32_t i = 0; i < COMM_VARGS; i++) {
		struct vargs *v = &c->vargs[i];
		size_t n = (size_t)c->nlocal * c->nranks;

		v->in_counts = reserve(vargs_size(c));
		if (!v->in_counts) {
			return false;
		}
		v->in_displs = v->in_counts + n;
		v->out_counts = v->in_displs + n;
		v->out_displs = v->out_counts + n;
		v->counts = v->out_displs + n;
		v->displs = v->counts + c->nranks;
	}
	for (uint32_t l = 0; l < c->nlocal; l++) {
		struct p2p_rank *r = reserve(p2p_rank_size(c));

		if (!r) {
			return false;
		}
		c->ranks[l].p2p = r;
		r->whole = (uint64_t *)(r + 1);
		r->sends = (uint32_t *)(r->whole + c->nranks);
		r->recvs = r->sends + c->nranks;
		r->opened = r->recvs + c->nranks;
		r->granted = r->opened + c->nranks;
	}
	return true;
}

/* At most half of the slots are taken. */
static int comm_index_peers(struct engine_comm *c)
{
	uint32_t slots = 4;

	while (slots < 2 * c->nhosts) {
		slots *= 2;
	}
	c->peer_hosts = calloc(slots, sizeof(*c->peer_hosts));
	if (!c->peer_hosts) {
		return -ENOMEM;
	}
	c->peer_mask = slots - 1;
	for (uint32_t h = 0; h < c->nhosts; h++) {
		const struct engine_peer *peer = c->params.peers[h];
		uint32_t at = comm_peer_slot(c, peer);

		while (peer && c->peer_hosts[at]) {
			at = (at + 1) & c->peer_mask;
		}
		if (peer) {
			c->peer_hosts[at] = h + 1;
		}
	}
	return 0;
}

static int comm_copy_params(struct engine_comm *c, const struct engine_comm_params *params)
{
	struct engine_peer **peers = calloc(c->nhosts, sizeof(struct engine_peer *));

	c->params = *params;
	c->params.ranks = NULL;
	c->params.peers = peers;
	if (!peers) {
		return -ENOMEM;
	}
	memcpy(peers, params->peers, c->nhosts * sizeof(struct engine_peer *));
	return comm_index_peers(c);
}

int comm_new(const struct engine_comm_params *params, struct progress *p, struct engine_comm **ret)
{
	struct engine_comm *c = calloc(1, sizeof(*c));

	if (!c) {
		return err_origin(-ENOMEM);
	}
	c->progress = p;
	c->nhosts = params->layout->nhosts;
	c->nranks = params->layout->nranks;
	c->nlocal = coll_nlocal(params->layout, params->host);
	list_init(&c->link);
	list_init(&c->unexpected);
	list_init(&c->p2p_free);
	list_init(&c->p2p_active);
	if (comm_copy_params(c, params) < 0 || !comm_allocate(c)) {
		comm_free(c);
		return err_origin(-ENOMEM);
	}
	for (uint32_t i = 0; i < WINDOW; i++) {
		c->ops[i].comm = c;
		c->ops[i].posts = &c->posts[(size_t)i * c->nlocal];
	}
	for (uint32_t l = 0; l < c->nlocal; l++) {
		c->ranks[l].session = params->ranks[l].session;
		c->ranks[l].handle = params->ranks[l].handle;
		c->ranks[l].rank = params->ranks[l].rank;
		list_init(&c->ranks[l].posts);
	}
	*ret = c;
	return 0;
}

static void unreserve(void *p, size_t size)
{
	if (p) {
		munmap(p, size);
	}
}

struct engine_comm *comm_free(struct engine_comm *c)
{
	if (!c) {
		return NULL;
	}
	for (uint32_t i = 0; i < COMM_PLANS; i++) {
		plan_entry_free(c->plans[i]);
	}
	plan_entry_free(c->plan_evicted);
	for (uint32_t i = 0; i < COMM_VARGS; i++) {
		unreserve(c->vargs[i].in_counts, vargs_size(c));
	}
	for (uint32_t l = 0; c->ranks && l < c->nlocal; l++) {
		unreserve(c->ranks[l].p2p, p2p_rank_size(c));
	}
	unreserve(c->posts, WINDOW * (size_t)c->nlocal * sizeof(*c->posts));
	unreserve(c->grants, WINDOW * (size_t)c->nhosts * sizeof(*c->grants));
	unreserve(c->temp, (size_t)COMM_ACTIVE * COMM_TEMP);
	unreserve(c->p2ps, COMM_P2PS * (size_t)c->nlocal * sizeof(*c->p2ps));
	device_comm_deinit(c);
	free(c->ops);
	free(c->ranks);
	free(c->grant_lost);
	free((void *)c->params.peers);
	free(c->peer_hosts);
	free(c);
	return NULL;
}

struct op *comm_op(struct engine_comm *c, uint32_t seq)
{
	if (seq - c->done >= WINDOW) {
		return NULL;
	}
	if (c->over[seq % WINDOW]) {
		return NULL;
	}
	c->ops[seq % WINDOW].seq = seq;
	return &c->ops[seq % WINDOW];
}

/**
 * comm_advance() - start the operations whose turn has come
 *
 * In order of their numbers, so that the oldest one always has what it needs: whatever younger ones
 * hold was left over by it. Starting can finish an operation at once (count 0), which comes back
 * here: the flag turns that recursion into another round.
 */
void comm_advance(struct engine_comm *c)
{
	if (c->advancing) {
		c->again = true;
		return;
	}
	c->advancing = true;
	do {
		c->again = false;
		while (!c->failed && c->started != c->tail) {
			struct op *op = &c->ops[c->started % WINDOW];

			if (op->state != OP_READY || op_start(op) == OP_E_LATER) {
				break;
			}
		}
	} while (c->again && !c->failed);
	c->advancing = false;
}

uint64_t comm_number(const struct engine_comm *c, uint32_t seq)
{
	uint64_t posted = c->ranks[0].posted;

	/* Within a window of each other. */
	return posted + (uint64_t)(int32_t)(seq - (uint32_t)posted);
}

static void comm_update_view(struct engine_comm *c)
{
	const struct op *op = &c->ops[c->done % WINDOW];
	struct comm_view *v = c->params.view;

	counter_set(&v->completed, comm_number(c, c->done));
	counter_set(&v->started, comm_number(c, c->started));
	if (c->done == c->tail || op->state == OP_FREE) {
		counter_set(&v->wait_since_ns, 0);
		return;
	}
	counter_set(&v->wait_since_ns, op->first_post);
	counter_set32(&v->cur_kind, op->sig.kind);
	counter_set32(&v->cur_dtype, op->sig.dtype);
	counter_set32(&v->cur_op, op->sig.op);
	counter_set32(&v->cur_root, op->sig.root);
	counter_set32(&v->cur_algo, op->ctx ? op->ctx->entry->plan->algo : 0);
	counter_set(&v->cur_count, op->sig.count);
}

static void op_recycle(struct op *op)
{
	struct engine_comm *c = op->comm;

	op->state = OP_FREE;
	op->nposted = 0;
	op->grant_all = false;
	op->remote_known = false;
	op->ctx = NULL;
	memset(&c->grants[(size_t)(op->seq % WINDOW) * c->nhosts], 0,
	       c->nhosts * sizeof(*c->grants));
}

void comm_op_finished(struct op *op)
{
	struct engine_comm *c = op->comm;

	for (uint32_t l = 0; l < c->nlocal; l++) {
		post_complete(c, l, &op->posts[l], STATUS_OK, 0);
		post_release(&op->posts[l]);
	}
	counter_add(&c->params.view->ops, 1);
	op_recycle(op);
	c->over[op->seq % WINDOW] = true;
	while (c->done != c->started && c->over[c->done % WINDOW]) {
		c->over[c->done % WINDOW] = false;
		c->done++;
		c->oldest_since = c->progress->now;
	}
	c->progress->busy--;
	comm_update_view(c);
	comm_advance(c);
	p2p_advance(c);
}

/* ---- posting ------------------------------------------------------------------------------ */

static void comm_invalid(struct engine_comm *c, uint32_t local, const char *reason)
{
	struct engine_failure f = {
		.cause = ENGINE_FAIL_INVALID,
		.status = STATUS_INVALID,
		.seq = c->ranks[local].posted,
		.rank_a = (int32_t)c->ranks[local].rank,
		.rank_b = -1,
		.host_b = -1,
		.reason = reason,
	};

	comm_fail_event(c, &f);
}

static const char *desc_check(const struct engine_comm *c, uint32_t local, const struct shm_desc *d)
{
	const struct engine_rank *rank = &c->ranks[local];

	if (d->kind >= COLL_COUNT_) {
		return "its operation is unknown";
	}
	if (d->dtype >= DTYPE_COUNT_) {
		return "its dtype is unknown";
	}
	if (coll_kind_reduces(d->kind) && !redop_supports(d->op, d->dtype)) {
		return "its reduction does not exist for its dtype";
	}
	if ((coll_kind_has_root(d->kind) || coll_kind_is_p2p(d->kind)) && d->root >= c->nranks) {
		return "its root or partner is not a rank of the communicator";
	}
	if (coll_kind_is_p2p(d->kind)) {
		uint32_t host = c->params.layout->host_of[d->root];

		return host != c->params.host && !c->params.peers[host] ? ENGINE_NOT_LINKED : NULL;
	}
	if (d->seq != rank->posted) {
		return "its sequence number is not the next one";
	}
	if ((uint32_t)rank->posted - c->done >= WINDOW) {
		return "it has more operations in flight than the window holds";
	}
	return NULL;
}

static struct engine_signature desc_signature(const struct shm_desc *d)
{
	struct engine_signature sig = {
		.kind = d->kind,
		.dtype = d->dtype,
		.op = coll_kind_reduces(d->kind) ? d->op : 0,
		.root = coll_kind_has_root(d->kind) ? d->root : 0,
		/* Counts of v-variants differ from rank to rank. */
		.count = coll_kind_is_v(d->kind) ? 0 : d->count,
	};

	if (d->kind == COLL_BARRIER) {
		sig.dtype = 0;
		sig.count = 0;
	}
	return sig;
}

static bool signature_equal(const struct engine_signature *a, const struct engine_signature *b)
{
	return a->kind == b->kind && a->dtype == b->dtype && a->op == b->op && a->root == b->root &&
	       a->count == b->count;
}

static void comm_mismatch_local(struct op *op, uint32_t local, const struct engine_signature *sig)
{
	struct engine_comm *c = op->comm;
	struct engine_failure f = {
		.cause = ENGINE_FAIL_MISMATCH_LOCAL,
		.status = STATUS_MISMATCH,
		.seq = comm_number(c, op->seq),
		.rank_b = (int32_t)c->ranks[local].rank,
		.host_b = -1,
		.rank_a = -1,
		.a = op->sig,
		.b = *sig,
	};

	for (uint32_t l = 0; l < c->nlocal; l++) {
		if (l != local && op->posts[l].posted) {
			f.rank_a = (int32_t)c->ranks[l].rank;
			break;
		}
	}
	comm_fail_event(c, &f);
}

static void comm_mismatch_peer(struct op *op, uint32_t host, const struct engine_signature *theirs)
{
	struct engine_failure f = {
		.cause = ENGINE_FAIL_MISMATCH_PEER,
		.status = STATUS_MISMATCH,
		.seq = comm_number(op->comm, op->sig_seq),
		.rank_a = -1,
		.rank_b = -1,
		.host_b = (int32_t)host,
		.a = op->sig,
		.b = *theirs,
	};

	comm_fail_event(op->comm, &f);
}

bool comm_check_signature(struct op *op, uint32_t host, const struct engine_signature *theirs)
{
	if (op->state == OP_FREE) {
		if (!op->remote_known) {
			op->remote_known = true;
			op->remote_host = host;
			op->remote_sig = *theirs;
		}
		return true;
	}
	if (signature_equal(&op->sig, theirs)) {
		return true;
	}
	comm_mismatch_peer(op, host, theirs);
	return false;
}

void comm_check_past(struct engine_comm *c, uint32_t seq, uint32_t host,
		     const struct engine_signature *theirs)
{
	struct op *op = &c->ops[seq % WINDOW];

	/* Posted here, and the slot still knows how. */
	if ((int32_t)(seq - c->tail) < 0 && op->sig_seq == seq &&
	    !signature_equal(&op->sig, theirs)) {
		comm_mismatch_peer(op, host, theirs);
	}
}

/* The first local rank of an operation decides what the others are compared with. */
static bool op_first_post(struct op *op, const struct engine_signature *sig)
{
	struct engine_comm *c = op->comm;

	op->state = OP_POSTING;
	op->sig = *sig;
	op->sig_seq = op->seq;
	op->first_post = c->progress->now;
	op->last_progress = c->progress->now;
	c->tail++;
	c->progress->busy++;
	return !op->remote_known || comm_check_signature(op, op->remote_host, &op->remote_sig);
}

void comm_post(struct engine_comm *c, uint32_t local, const struct shm_desc *d)
{
	struct engine_rank *rank = &c->ranks[local];
	const char *why = c->failed ? NULL : desc_check(c, local, d);
	struct engine_signature sig;
	struct op *op;

	if (!c->failed && why) {
		comm_invalid(c, local, why);
	}
	if (c->failed || rank->detached) {
		client_ring_complete(rank->session, c->params.view, d->ticket, d->generation,
				     c->failed ? c->failed : STATUS_ABORTED, 0);
		return;
	}
	counter_set(&c->params.view->ranks[local].last_post_ns, c->progress->now);
	if (coll_kind_is_p2p(d->kind)) {
		p2p_post(c, local, d);
		return;
	}
	op = &c->ops[rank->posted % WINDOW];
	op->seq = (uint32_t)rank->posted;
	why = post_fill(c, local, d, &op->posts[local]);
	rank->posted++;
	counter_set(&c->params.view->ranks[local].posted, rank->posted);
	list_append(&rank->posts, &op->posts[local].link);
	sig = desc_signature(d);
	if (op->state == OP_FREE) {
		if (!op_first_post(op, &sig)) {
			return;
		}
	} else if (!signature_equal(&op->sig, &sig)) {
		comm_mismatch_local(op, local, &sig);
		return;
	}
	if (why) {
		comm_invalid(c, local, why);
		return;
	}
	comm_update_view(c);
	if (++op->nposted == c->nlocal) {
		op->state = OP_READY;
		comm_advance(c);
	}
}
