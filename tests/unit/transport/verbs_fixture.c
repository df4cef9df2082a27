/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fixture of the verbs tests
 *
 * Thread: one      Owns: see verbs_fixture.h      Locks: none
 */
#include "tests/unit/transport/verbs_fixture.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#define ARENA ((size_t)48 << 20)
#define GUARD 0xa5

uint64_t vrandom(struct vnet *n, uint64_t below)
{
	return fake_verbs_random(n->fake, below);
}

static uint8_t pattern(uint32_t message, uint64_t offset)
{
	return (uint8_t)(message * 37 + offset + (offset >> 8) * 3 + (offset >> 16) * 5);
}

static void maybe_free(struct vend *e, enum vcall here)
{
	if (e->free_in == here && e->peer) {
		e->peer = verbs_peer_free(e->peer);
	}
}

static struct vend *end_of(struct verbs_peer *peer)
{
	return verbs_peer_user(peer);
}

static int on_begin(void *arg, struct verbs_peer *peer, const struct wire_header *header,
		    struct transport_recv **ret)
{
	struct vend *e = end_of(peer);
	struct vmsg *m = &e->incoming[header->seq];

	cr_assert_eq(arg, e);
	cr_assert(header->seq < e->nincoming && header->length == m->length);
	cr_assert_eq(m->begun++, 0);
	e->begun++;
	memset(&m->recv, 0, sizeof(m->recv));
	m->recv.user = m;
	m->recv.discard = m->mode == V_DISCARD;
	if (m->mode == V_DIRECT || m->mode == V_PLAIN) {
		m->recv.iov = m->pieces ? m->in_iov : NULL;
		m->recv.niov = m->pieces;
	}
	*ret = &m->recv;
	maybe_free(e, VC_BEGIN);
	return 0;
}

static void on_fragment(void *arg, struct transport_recv *recv, const void *data, uint64_t offset,
			uint64_t size)
{
	struct vmsg *m = recv->user;
	struct vend *e = arg;
	uint32_t id = (uint32_t)(m - e->incoming);

	cr_assert(offset + size <= m->length && size > 0);
	cr_assert_eq(data != NULL, m->mode == V_FRAGMENT);
	if (data) {
		cr_assert(offset % 64 == 0 && (size % 64 == 0 || offset + size == m->length));
		memcpy(m->in + offset, data, size);
	}
	for (uint64_t i = offset; i < offset + size; i++) {
		cr_assert_eq(m->seen[i]++, 0, "message %u byte %zu twice", id, (size_t)i);
	}
	maybe_free(e, VC_FRAGMENT);
}

static void on_done(void *arg, struct transport_recv *recv)
{
	struct vmsg *m = recv->user;
	struct vend *e = arg;
	uint32_t id = (uint32_t)(m - e->incoming);

	cr_assert_eq(m->received++, 0);
	for (uint64_t i = 0; m->mode != V_DISCARD && i < m->length; i++) {
		cr_assert(m->seen[i] == 1 && m->in[i] == pattern(id, i),
			  "message %u (mode %d, length %zu) byte %zu: seen %u, %u is not %u", id,
			  m->mode, (size_t)m->length, (size_t)i, m->seen[i], m->in[i],
			  pattern(id, i));
	}
	if (!recv->discard) {
		memset(m->in, GUARD, m->length);
	}
	e->done++;
	maybe_free(e, VC_DONE);
}

static void on_down(void *arg, struct verbs_peer *peer, int error, const char *reason)
{
	struct vend *e = arg;

	e->down++;
	e->down_error = error;
	e->sent_before_down = e->sent;
	snprintf(e->reason, sizeof(e->reason), "%s", reason);
	maybe_free(e, VC_DOWN);
}

static void on_rail(void *arg, struct verbs_peer *peer, uint32_t rail, enum verbs_rail_state state,
		    const char *text)
{
	struct vend *e = arg;

	e->ups += state == VERBS_RAIL_UP;
	e->downs += state == VERBS_RAIL_DOWN;
	snprintf(e->rail_text, sizeof(e->rail_text), "%s", text);
	maybe_free(e, VC_RAIL);
}

static void on_sent(struct transport_send *send, int status)
{
	struct vmsg *m = send->user;

	cr_assert_eq(m->sent++, 0);
	m->status = status;
	m->from->sent++;
	/* The memory is the caller's again. */
	memset(m->out, 0xee, m->length);
	maybe_free(m->from, VC_SENT);
}

static bool on_control(void *arg, struct verbs_peer *peer, const void *data, size_t size)
{
	struct vend *e = arg;
	struct vnet *n = e->net;
	struct vcontrol *c = &n->control[n->ncontrol];

	if (n->ncontrol == 64 || vrandom(n, 10) == 0) {
		return false;
	}
	cr_assert(size <= sizeof(c->data));
	c->to = e == &n->end[0];
	c->size = (uint32_t)size;
	memcpy(c->data, data, size);
	n->ncontrol++;
	return true;
}

static void deliver_control(struct vnet *n)
{
	struct vcontrol *c = n->control;

	if (n->ncontrol > 0 && vrandom(n, 3) == 0) {
		if (n->end[c->to].peer) {
			verbs_control(n->end[c->to].peer, c->data, c->size);
		}
		memmove(c, c + 1, --n->ncontrol * sizeof(*c));
	}
}

static struct vother *other_add(struct vend *e)
{
	struct vnet *n = e->net;
	struct vother *o = &n->other[n->nother++];

	cr_assert(n->nother <= ARRAY_SIZE(n->other));
	memset(o, 0, sizeof(*o));
	o->to = e == &n->end[0];
	return o;
}

static void on_pass(void *arg, struct verbs_peer *peer, struct transport_send *send)
{
	other_add(arg)->send = send;
}

/* A fragment that is through at once. */
static void write_now(struct vend *from, uint32_t ticket, const void *data, uint32_t size,
		      struct verbs_fragment *fragment)
{
	struct vend *to = &from->net->end[from == &from->net->end[0]];
	void *at = verbs_outside_begin(to->peer, ticket, size);

	cr_assert_not_null(at, "no ticket %x", ticket);
	memcpy(at, data, size);
	verbs_outside_done(to->peer, ticket);
	verbs_outside_sent(from->peer, fragment, 0);
}

static bool on_write(void *arg, struct verbs_peer *peer, uint32_t ticket, void *data, uint32_t size,
		     struct verbs_fragment *fragment)
{
	struct vend *e = arg;
	struct vother *o;

	if (e->net->nother > 128 || vrandom(e->net, 4) == 0) {
		return false;
	}
	if (vrandom(e->net, 4) == 0) {
		write_now(e, ticket, data, size, fragment);
		return true;
	}
	o = other_add(e);
	o->ticket = ticket;
	o->size = size;
	o->data = data;
	o->fragment = fragment;
	return true;
}

/* A whole message, as the other transport brings it. */
static void bring(struct vend *to, struct transport_send *send)
{
	struct wire_header h = send->header;
	struct vmsg *m = send->user;
	struct transport_recv *recv;

	h.length = send->length;
	cr_assert_eq(on_begin(to, to->peer, &h, &recv), 0);
	if (recv->iov) {
		uint64_t at = 0;

		for (uint32_t i = 0; i < recv->niov; i++) {
			memcpy(recv->iov[i].iov_base, m->out + at, recv->iov[i].iov_len);
			at += recv->iov[i].iov_len;
		}
	}
	if (!recv->discard && h.length > 0) {
		on_fragment(to, recv, recv->iov ? NULL : m->out, 0, h.length);
	}
	on_done(to, recv);
	send->done(send, 0);
}

static void deliver_other(struct vnet *n)
{
	struct vother o;
	uint32_t i;
	void *at;

	if (n->nother == 0 || vrandom(n, 3) != 0) {
		return;
	}
	i = (uint32_t)vrandom(n, n->nother);
	o = n->other[i];
	n->other[i] = n->other[--n->nother];
	if (o.send) {
		bring(&n->end[o.to], o.send);
		return;
	}
	at = verbs_outside_begin(n->end[o.to].peer, o.ticket, o.size);
	cr_assert_not_null(at, "no ticket %x", o.ticket);
	cr_assert_null(verbs_outside_begin(n->end[o.to].peer, o.ticket, o.size + 1));
	cr_assert_null(
		verbs_outside_begin(n->end[o.to].peer, o.ticket, o.size)); /* one at a time */
	memcpy(at, o.data, o.size);
	verbs_outside_done(n->end[o.to].peer, o.ticket);
	verbs_outside_sent(n->end[!o.to].peer, o.fragment, 0);
}

static const struct verbs_handler handler = {on_begin, on_fragment, on_done, on_down,
					     on_rail,  NULL,	    NULL,    NULL},
				  handler_outside = {on_begin, on_fragment, on_done, on_down,
						     on_rail,  on_control,  NULL,    NULL},
				  handler_stand_in = {on_begin, on_fragment, on_done, on_down,
						      on_rail,	on_control,  on_pass, on_write};

static void end_init(struct vnet *n, uint32_t host, const struct verbs_options *options)
{
	static const char *const names[] = {"alpha", "beta"};
	struct rdma_options all = {NULL, NULL};
	struct vend *e = &n->end[host];
	char why[VERBS_REASON];

	memset(e, 0, sizeof(*e));
	e->net = n;
	cr_assert_eq(rdma_new(fake_verbs_api(n->fake, host), &all, &e->devices), 0);
	cr_assert_eq(verbs_new(options,
			       n->stand_in  ? &handler_stand_in
			       : n->outside ? &handler_outside
					    : &handler,
			       e, fake_verbs_clock(n->fake), &e->v),
		     0);
	for (uint32_t r = 0; r < n->rails; r++) {
		cr_assert_eq(verbs_device_add(e->v, e->devices->devices[r], why, sizeof(why)), 0,
			     "%s", why);
	}
	e->arena = aligned_alloc(4096, ARENA);
	cr_assert_eq(rdma_mem_new(e->devices, e->arena, ARENA, &e->mem), 0);
	cr_assert_eq(verbs_mem_add(e->v, e->mem), 0);
	cr_assert_eq(verbs_peer_new(e->v, e, names[!host], host == 0, &e->peer), 0);
}

static void init(struct vnet *n, uint64_t seed, uint32_t rails, const struct verbs_options *a,
		 const struct verbs_options *b, bool lazy);

void vnet_init(struct vnet *n, uint64_t seed, uint32_t rails, const struct verbs_options *options,
	       bool lazy)
{
	memset(n, 0, sizeof(*n));
	init(n, seed, rails, options, options, lazy);
}

void vnet_init_two(struct vnet *n, uint64_t seed, uint32_t rails,
		   const struct verbs_options options[HOSTS])
{
	memset(n, 0, sizeof(*n));
	init(n, seed, rails, &options[0], &options[1], false);
}

void vnet_init_outside(struct vnet *n, uint64_t seed, uint32_t rails)
{
	memset(n, 0, sizeof(*n));
	n->outside = true;
	n->control = calloc(64, sizeof(*n->control));
	init(n, seed, rails, NULL, NULL, false);
}

void vnet_init_stand_in(struct vnet *n, uint64_t seed, uint32_t rails)
{
	memset(n, 0, sizeof(*n));
	n->stand_in = n->outside = true;
	n->control = calloc(64, sizeof(*n->control));
	init(n, seed, rails, NULL, NULL, false);
}

static void init(struct vnet *n, uint64_t seed, uint32_t rails, const struct verbs_options *a,
		 const struct verbs_options *b, bool lazy)
{
	struct verbs_options defaults = {.fragment = 4096, .direct = 16384, .chunks = 16};
	char name[32];

	n->fake = fake_verbs_new(seed);
	n->rails = rails;
	for (uint32_t h = 0; h < HOSTS; h++) {
		for (uint32_t r = 0; r < rails; r++) {
			snprintf(name, sizeof(name), "roce%c%u", 'a' + h, r);
			n->devices[h][r] = fake_verbs_device(n->fake, h, name, r);
		}
	}
	for (uint32_t h = 0; h < HOSTS; h++) {
		const struct verbs_options *options = h ? b : a;

		end_init(n, h, options ? options : &defaults);
	}
	for (uint32_t r = 0; !lazy && r < rails; r++) {
		vnet_connect(n, r);
	}
	if (!lazy) {
		vnet_settle(n);
	}
}

void vnet_connect(struct vnet *n, uint32_t rail)
{
	struct verbs_blob blob[HOSTS];
	char why[VERBS_REASON];

	for (uint32_t h = 0; h < HOSTS; h++) {
		struct verbs_rail_params p = {n->end[h].devices->devices[rail], 1,
					      fake_verbs_gid(rail, h), 0};

		cr_assert_eq(verbs_rail_open(n->end[h].peer, rail, &p, &blob[h], why, sizeof(why)),
			     0, "%s", why);
	}
	for (uint32_t h = 0; h < HOSTS; h++) {
		cr_assert_eq(verbs_rail_connect(n->end[h].peer, rail, &blob[!h], why, sizeof(why)),
			     0, "%s", why);
	}
}

void vnet_turn(struct vnet *n)
{
	uint64_t steps = vrandom(n, 8);

	while (steps-- > 0) {
		fake_verbs_step(n->fake);
	}
	fake_verbs_advance(n->fake, 20 * CLOCK_NS_PER_US);
	deliver_control(n);
	deliver_other(n);
	verbs_poll(n->end[vrandom(n, HOSTS)].v);
}

static bool all_up(const struct vnet *n)
{
	for (uint32_t r = 0; r < n->rails; r++) {
		for (uint32_t h = 0; h < HOSTS; h++) {
			struct verbs_rail_info info;

			verbs_rail_info(n->end[h].peer, r, &info);
			if (info.state != VERBS_RAIL_UP) {
				return false;
			}
		}
	}
	return true;
}

void vnet_settle(struct vnet *n)
{
	for (int i = 0; i < 200000 && !all_up(n); i++) {
		cr_assert(!n->end[0].down && !n->end[1].down, "%s%s", n->end[0].reason,
			  n->end[1].reason);
		vnet_turn(n);
		fake_verbs_advance(n->fake, 100 * CLOCK_NS_PER_US);
	}
	cr_assert(all_up(n), "rails did not come up: %s / %s", n->end[0].rail_text,
		  n->end[1].rail_text);
}

void vnet_fini(struct vnet *n)
{
	cr_assert_eq(fake_verbs_rnr(n->fake), 0, "the receiver was overrun");
	for (uint32_t h = 0; h < HOSTS; h++) {
		struct vend *e = &n->end[h];

		verbs_peer_free(e->peer);
		verbs_mem_remove(e->v, e->mem);
		verbs_free(e->v);
		rdma_mem_free(e->mem);
		rdma_free(e->devices);
		free(e->arena);
	}
	fake_verbs_free(n->fake);
	free(n->control);
}

struct vmsg *vmsgs_new(struct vnet *n, uint32_t from, uint32_t count)
{
	struct vmsg *m = calloc(count, sizeof(*m));

	for (uint32_t i = 0; i < count; i++) {
		m[i].from = &n->end[from];
		m[i].to = &n->end[!from];
	}
	n->end[!from].incoming = m;
	n->end[!from].nincoming = count;
	return m;
}

static uint8_t *take(struct vend *e, uint64_t size, bool registered)
{
	uint8_t *p;

	if (!registered) {
		return malloc(MAX(size, 1));
	}
	p = e->arena + e->used;
	e->used += ALIGN_UP(size, 64);
	cr_assert(e->used <= ARENA);
	return p;
}

static struct iovec *cut(struct vnet *n, uint8_t *base, uint64_t length, uint32_t pieces)
{
	struct iovec *iov = calloc(MAX(pieces, 1), sizeof(*iov));
	uint64_t at = 0;

	for (uint32_t i = 0; i < pieces; i++) {
		uint64_t left = length - at, more = pieces - i - 1;
		uint64_t size = more ? vrandom(n, left / (more + 1) * 2 + 1) : left;

		size = MAX(1, MIN(size, left - more));
		iov[i] = (struct iovec){base + at, size};
		at += size;
	}
	return iov;
}

void vmsg_init(struct vmsg *m, uint64_t length, uint32_t pieces, enum vmode mode)
{
	struct vnet *n = m->from->net;
	uint32_t id = (uint32_t)(m - m->to->incoming);

	m->length = length;
	m->mode = mode == V_MIXED ? (enum vmode)vrandom(n, V_MIXED) : mode;
	m->pieces = (uint32_t)MIN(length, pieces);
	m->out = take(m->from, length, m->mode != V_PLAIN);
	m->in = take(m->to, length, m->mode != V_PLAIN);
	m->seen = calloc(MAX(length, 1), 1);
	for (uint64_t i = 0; i < length; i++) {
		m->out[i] = pattern(id, i);
	}
	memset(m->in, 0, length);
	m->out_iov = cut(n, m->out, length, m->pieces);
	m->in_iov = cut(n, m->in, length, m->pieces);
	m->send.header = (struct wire_header){.type = WIRE_DATA, .seq = id};
	m->send.iov = m->out_iov;
	m->send.niov = m->pieces;
	m->send.length = length;
	m->send.done = on_sent;
	m->send.user = m;
}

void vmsgs_check(struct vmsg *m, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		cr_assert(m[i].sent == 1 && m[i].status == 0, "message %u: sent %d, status %d", i,
			  m[i].sent, m[i].status);
		cr_assert_eq(m[i].received, 1, "message %u did not come", i);
		for (uint64_t k = 0; m[i].mode != V_DISCARD && k < m[i].length; k++) {
			cr_assert_eq(m[i].in[k], GUARD, "message %u was written to afterwards", i);
		}
	}
}

void vmsgs_free(struct vmsg *m, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		if (m[i].mode == V_PLAIN) {
			free(m[i].out);
			free(m[i].in);
		}
		free(m[i].seen);
		free(m[i].out_iov);
		free(m[i].in_iov);
	}
	free(m);
}
