/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of the verbs backend: what rails are set up with, what devices refuse, what peers may say
 *
 * Thread: one      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "tests/unit/transport/verbs_fixture.h"
#include "transport/verbs/verbs_impl.h"

/* Every attribute is as configured, on both ends; nothing retries for ever. */
Test(verbs_setup, attributes)
{
	struct verbs_options o = {.fragment = 4096,
				  .chunks = 16,
				  .bulk_qps = 4,
				  .traffic_class = 106,
				  .service_level = 3,
				  .hop_limit = 17,
				  .timeout = 15,
				  .retry = 5};
	struct verbs_rail_info info;
	uint32_t seen[5] = {0};
	struct vnet n;

	vnet_init(&n, 31, 1, &o, false);
	for (uint32_t h = 0; h < HOSTS; h++) {
		verbs_rail_info(n.end[h].peer, 0, &info);
		cr_assert(info.nqps == 5 && info.mtu == 4096 && info.traffic_class == 106 &&
			  info.remote_traffic_class == 106);
		cr_assert(n.devices[h][0]->gids[info.gid_index].valid);
		for (uint32_t i = 0; i < 5; i++) {
			const struct ibv_qp_attr *a = fake_verbs_qp_attr(n.devices[h][0], i);

			cr_assert(a->ah_attr.is_global && a->ah_attr.grh.traffic_class == 106 &&
				  a->ah_attr.sl == 3 && a->ah_attr.grh.hop_limit == 17 &&
				  a->timeout == 15 && a->retry_cnt == 5);
			cr_assert_eq(a->ah_attr.grh.sgid_index, info.gid_index);
			seen[i] = a->ah_attr.grh.flow_label;
			cr_assert_eq(info.udp_ports[i], ibv_flow_label_to_udp_sport(seen[i]));
			for (uint32_t k = 0; k < i; k++) {
				cr_assert_neq(info.udp_ports[k], info.udp_ports[i]);
			}
		}
	}
	vnet_fini(&n);
}

Test(verbs_setup, different_mtu)
{
	struct verbs_rail_info info;
	struct vmsg *m;
	struct vnet n;

	vnet_init(&n, 32, 1, NULL, true);
	n.devices[1][0]->port.active_mtu = IBV_MTU_1024;
	vnet_connect(&n, 0);
	vnet_settle(&n);
	for (uint32_t h = 0; h < HOSTS; h++) {
		verbs_rail_info(n.end[h].peer, 0, &info);
		cr_assert_eq(info.mtu, 1024);
		cr_assert_eq(info.local_mtu, h ? 1024 : 4096);
		cr_assert_eq(info.remote_mtu, h ? 4096 : 1024);
		for (uint32_t i = 0; i < 3; i++) {
			cr_assert_eq(fake_verbs_qp_attr(n.devices[h][0], i)->path_mtu,
				     IBV_MTU_1024);
		}
	}
	m = vmsgs_new(&n, 0, 1);
	vmsg_init(&m[0], 1 << 20, 1, V_DIRECT);
	verbs_send(n.end[0].peer, &m[0].send);
	while (!n.end[1].done || !n.end[0].sent) {
		vnet_turn(&n);
	}
	vmsgs_check(m, 1);
	vnet_fini(&n);
	vmsgs_free(m, 1);
}

static int open_rail(struct vnet *n, char *why, size_t size)
{
	struct rdma_device *d = n->end[0].devices->devices[0];
	struct verbs_rail_params p = {d, 1, fake_verbs_gid(0, 0), 0};
	struct verbs_blob blob;

	return verbs_rail_open(n->end[0].peer, 0, &p, &blob, why, size);
}

/* What the device does not give is said with what is used and what there is; nothing is left over.
 */
Test(verbs_setup, exhausted)
{
	struct fake_device *d;
	char why[VERBS_REASON];
	struct vnet n;

	vnet_init(&n, 33, 1, NULL, true);
	d = n.devices[0][0];
	n.end[0].devices->devices[0]->attr.max_qp = d->caps.max_qp = 2;
	cr_assert_eq(open_rail(&n, why, sizeof(why)), -ENOMEM);
	cr_assert(strstr(why, "rocea0") && strstr(why, "2 are in use here, the device has 2"), "%s",
		  why);
	cr_assert(!strstr(why, "locked memory"), "%s", why);
	cr_assert_eq(d->qps, 0);

	d->caps.max_qp = 100;
	d->caps.max_qp_wr = 10;
	cr_assert_eq(open_rail(&n, why, sizeof(why)), -EINVAL);
	cr_assert(strstr(why, "queue pair"), "%s", why);
	vnet_fini(&n);

	vnet_init(&n, 34, 1, NULL, true);
	d = n.devices[0][0];
	d->caps.max_cq = 0;
	cr_assert_eq(open_rail(&n, why, sizeof(why)), -ENOMEM);
	cr_assert(strstr(why, "completion queue"), "%s", why);
	d->caps.max_cq = 1;
	d->caps.max_mr = d->mrs;
	cr_assert_eq(open_rail(&n, why, sizeof(why)), -ENOMEM);
	cr_assert(strstr(why, "cannot register receive buffers") && strstr(why, "locked memory"),
		  "%s", why);
	n.end[0].devices->devices[0]->attr.max_mr = d->caps.max_mr;
	cr_assert_eq(open_rail(&n, why, sizeof(why)), -ENOMEM);
	cr_assert(strstr(why, "cannot register receive buffers") &&
			  strstr(why, "regions at a time") && !strstr(why, "locked memory"),
		  "%s", why);
	d->caps.max_mr = 1000;
	cr_assert_eq(open_rail(&n, why, sizeof(why)), 0);
	cr_assert_eq(n.end[0].devices->devices[0]->receive_regions, 1);
	cr_assert_eq(open_rail(&n, why, sizeof(why)), -EINVAL);
	vnet_fini(&n);
}

/* Without room for inline data, or with one piece a request, it still works. */
Test(verbs_setup, small_device)
{
	struct vmsg *m;
	struct vnet n;
	uint32_t count = 20;

	vnet_init(&n, 35, 1, NULL, true);
	for (uint32_t h = 0; h < HOSTS; h++) {
		n.devices[h][0]->caps.max_inline = 0;
		n.devices[h][0]->caps.max_sge = 1;
		n.end[h].devices->devices[0]->attr.max_sge = 1;
	}
	vnet_connect(&n, 0);
	vnet_settle(&n);
	m = vmsgs_new(&n, 0, count);
	for (uint32_t i = 0; i < count; i++) {
		vmsg_init(&m[i], 5000 * i, 3, V_DIRECT);
		verbs_send(n.end[0].peer, &m[i].send);
	}
	while (n.end[1].done < count || n.end[0].sent < count) {
		vnet_turn(&n);
	}
	vmsgs_check(m, count);
	vnet_fini(&n);
	vmsgs_free(m, count);
}

/* Memory that the device did not register goes through staging: right data, counted. */
Test(verbs_setup, unregistrable_memory)
{
	struct verbs_stats s;
	struct vmsg *m;
	struct vnet n;

	vnet_init(&n, 36, 2, NULL, false);
	for (uint32_t h = 0; h < HOSTS; h++) {
		/* One of the two devices is enough to lose it. */
		rdma_mem_drop_device(n.end[h].mem, n.end[h].devices->devices[1]);
	}
	m = vmsgs_new(&n, 0, 1);
	vmsg_init(&m[0], 1 << 19, 1, V_DIRECT);
	verbs_send(n.end[0].peer, &m[0].send);
	while (!n.end[1].done || !n.end[0].sent) {
		vnet_turn(&n);
	}
	vmsgs_check(m, 1);
	verbs_get_stats(n.end[1].v, &s);
	cr_assert_eq(s.bytes_copied, 1 << 19);
	verbs_get_stats(n.end[0].v, &s);
	cr_assert(s.bytes_copied > 0 && s.bytes_copied < 1 << 19);
	vnet_fini(&n);
	vmsgs_free(m, 1);
}

Test(verbs_setup, connect_fails)
{
	struct verbs_rail_params p;
	struct verbs_blob a, b;
	char why[VERBS_REASON];
	struct vnet n;

	vnet_init(&n, 37, 1, NULL, true);
	p = (struct verbs_rail_params){n.end[0].devices->devices[0], 1, fake_verbs_gid(0, 0), 0};
	cr_assert_eq(verbs_rail_open(n.end[0].peer, 0, &p, &a, why, sizeof(why)), 0);
	b = a;
	b.version++;
	n.devices[0][0]->caps.rtr_errno = ETIMEDOUT;
	cr_assert_eq(verbs_rail_connect(n.end[0].peer, 0, &a, why, sizeof(why)), -ETIMEDOUT);
	cr_assert(strstr(why, "10.0.0.1") && strstr(why, "does not answer"), "%s", why);
	cr_assert_eq(verbs_rail_connect(n.end[0].peer, 0, &b, why, sizeof(why)), -EINVAL);
	verbs_poll(n.end[0].v);
	cr_assert_eq(n.end[0].down, 1);
	vnet_fini(&n);
}

Test(verbs_setup, blob_is_checked)
{
	struct verbs_rail_params p;
	struct verbs_blob a;
	char why[VERBS_REASON];
	struct vnet n;
	uint8_t *bytes;

	vnet_init(&n, 38, 1, NULL, true);
	p = (struct verbs_rail_params){n.end[0].devices->devices[0], 1, fake_verbs_gid(0, 0), 0};
	cr_assert_eq(verbs_rail_open(n.end[0].peer, 0, &p, &a, why, sizeof(why)), 0);
	bytes = (uint8_t *)&a;
	for (int i = 0; i < 20000; i++) {
		struct verbs_blob b = a;
		size_t at = vrandom(&n, sizeof(b));

		((uint8_t *)&b)[at] ^= (uint8_t)(1 + vrandom(&n, 255));
		/* Must look at all of it and decide; the sanitizers judge. */
		verbs_rail_check_blob(n.end[0].peer->rails[0], &b, why, sizeof(why));
	}
	memset(bytes, 0xff, sizeof(a));
	cr_assert_eq(verbs_rail_connect(n.end[0].peer, 0, &a, why, sizeof(why)), -EPROTO);
	cr_assert(strstr(why, "version"), "%s", why);
	vnet_fini(&n);
}

/* The trial does not come through: it is said, and both directions are told apart. */
Test(verbs_setup, trial_fails)
{
	struct verbs_options o = {.fragment = 4096, .chunks = 16, .probe_ms = 100};
	struct vnet n;

	vnet_init(&n, 39, 1, &o, true);
	vnet_connect(&n, 0);
	n.devices[1][0]->stalled = true;
	n.devices[0][0]->stalled = true;
	for (int i = 0; i < 10000 && !(n.end[0].down && n.end[1].down); i++) {
		vnet_turn(&n);
	}
	cr_assert(n.end[0].down && n.end[1].down);
	cr_assert(strstr(n.end[0].reason, "the trial was not through after 100 ms") &&
			  strstr(n.end[0].reason, "UDP 4791"),
		  "%s", n.end[0].reason);
	vnet_fini(&n);
}

/* Empty writes of the trial pass, its message of full packets does not: only one cause is left. */
Test(verbs_setup, trial_of_full_packets_fails)
{
	struct verbs_options o = {.fragment = 4096, .chunks = 16, .probe_ms = 100};
	struct vnet n;

	vnet_init(&n, 40, 1, &o, true);
	for (uint32_t h = 0; h < HOSTS; h++) {
		n.devices[h][0]->swallow_above = 1024;
	}
	vnet_connect(&n, 0);
	for (int i = 0; i < 10000 && !(n.end[0].down && n.end[1].down); i++) {
		vnet_turn(&n);
	}
	cr_assert(n.end[0].down && n.end[1].down);
	cr_assert(
		strstr(n.end[0].reason, "small packets pass, those of the full MTU (4096) do not"),
		"%s", n.end[0].reason);
	cr_assert(!strstr(n.end[0].reason, "UDP 4791"), "%s", n.end[0].reason);
	vnet_fini(&n);
}

/* Sixteen jobs over one peer are one set of queue pairs: making messages makes none. */
Test(verbs_setup, queue_pairs_are_shared)
{
	struct vmsg *m;
	struct vnet n;
	int qps, mrs;

	vnet_init(&n, 40, 2, NULL, false);
	qps = n.devices[0][0]->qps;
	mrs = n.devices[0][0]->mrs;
	cr_assert_eq(qps, 3);
	m = vmsgs_new(&n, 0, 16);
	for (uint32_t i = 0; i < 16; i++) {
		vmsg_init(&m[i], 100000, 1, V_DIRECT);
		m[i].send.header.comm = i;
		verbs_send(n.end[0].peer, &m[i].send);
	}
	while (n.end[1].done < 16 || n.end[0].sent < 16) {
		vnet_turn(&n);
		cr_assert(n.devices[0][0]->qps == qps && n.devices[0][0]->mrs == mrs);
	}
	vmsgs_check(m, 16);
	vnet_fini(&n);
	vmsgs_free(m, 16);
}

/* ---- peers that break the rules ---------------------------------------------------------- */

static void send_raw(struct vnet *n, const struct verbs_frame_header *h, const void *body,
		     uint32_t length)
{
	struct verbs_peer *peer = n->end[0].peer;
	struct verbs_frame *f = verbs_frame_get(n->end[0].v, true);
	struct verbs_frame_header *to;

	verbs_enter(n->end[0].v);
	to = verbs_frame_start(f, h->type, length);
	*to = *h;
	memcpy(verbs_frame_body(f), body, length);
	verbs_frame_post(peer->rails[0], f);
	verbs_leave(n->end[0].v);
}

static void run_hostile(const struct verbs_frame_header *h, const void *body, uint32_t length,
			const char *expected)
{
	struct vnet n;

	vnet_init(&n, 41, 1, NULL, false);
	n.end[1].nincoming = 0;
	send_raw(&n, h, body, length);
	for (int i = 0; i < 2000 && !n.end[1].down; i++) {
		vnet_turn(&n);
	}
	cr_assert(n.end[1].down && n.end[1].down_error == -EPROTO, "%s", expected);
	cr_assert(strstr(n.end[1].reason, "alpha broke the protocol") &&
			  strstr(n.end[1].reason, expected),
		  "%s, not %s", n.end[1].reason, expected);
	vnet_fini(&n);
}

Test(verbs_setup, hostile_frames)
{
	static const uint8_t zero[4096];
	struct wire_header w = {.magic = WIRE_MAGIC, .length = 5, .fragment = 5};
	struct verbs_frame_header h = {.magic = VERBS_MAGIC};

#define FRAME(t, n) (h.type = (t), h.length = (n), h.seq = 0, &h)
	h.magic = 0;
	run_hostile(FRAME(VERBS_EAGER, 64), zero, 64, "a frame that cannot be");
	h.magic = VERBS_MAGIC;
	run_hostile(FRAME(VERBS_FRAME_COUNT_, 64), zero, 64, "a frame that cannot be");
	run_hostile(FRAME(VERBS_EAGER, 65), zero, 64, "a frame that cannot be");
	run_hostile(FRAME(VERBS_EAGER, 10), zero, 10, "without a header");
	run_hostile(FRAME(VERBS_EAGER, 64), &w, 64, "header that cannot be");
	run_hostile(FRAME(VERBS_RTS, 64), zero, 64, "header that cannot be");
	w.fragment = 0;
	w.length = UINT64_MAX;
	run_hostile(FRAME(VERBS_RTS, 64), &w, 64, "header that cannot be");
	run_hostile(FRAME(VERBS_RTS, 10), zero, 10, "more messages");
	h.to = 7;
	h.count = 1;
	run_hostile(FRAME(VERBS_CTS, 64), zero, 64, "grants for no message");
	h.to = 0xffffffff;
	run_hostile(FRAME(VERBS_CTS, 64), zero, 64, "grants for no message");
	h.rail = 200;
	run_hostile(FRAME(VERBS_DOWN, 4), zero, 4, "a rail that is not there");
	run_hostile(FRAME(VERBS_DRAINED, 0), zero, 0, "a rail that is not there");
	run_hostile(FRAME(VERBS_STATE, 4), zero, 4, "an answer that cannot be");
	h.count = 100;
	run_hostile(FRAME(VERBS_RESUME, 4), zero, 4, "a question that cannot be");
	run_hostile(FRAME(VERBS_OPEN, 4), zero, 4, "a blob of a wrong size");
	run_hostile(FRAME(VERBS_CHECK, 4), zero, 4, "a check that cannot be");
#undef FRAME
	h = (struct verbs_frame_header){.magic = VERBS_MAGIC, .type = VERBS_DRAINED, .seq = 60000};
	run_hostile(&h, zero, 0, "a sequence number that cannot be");
}

/* What follows a frame in the same SEND. The first one is dropped, for its number is old. */
Test(verbs_setup, hostile_followers)
{
	struct verbs_frame_header h = {
		.magic = VERBS_MAGIC, .type = VERBS_EAGER, .length = 64, .seq = UINT32_MAX - 5};
	struct verbs_frame_header second = {.magic = VERBS_MAGIC, .type = VERBS_EAGER};
	uint8_t body[96 + 2 * sizeof(second)] = {0};
	static const struct {
		uint8_t type;
		uint32_t length, have;
	} bad[] = {{0, 0, 32},		{VERBS_DOWN, 0, 32},	     {VERBS_CREDIT, 0, 32},
		   {VERBS_CTS, 33, 64}, {VERBS_CTS, UINT32_MAX, 64}, {VERBS_CTS, 0, 31}};

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		second.type = bad[i].type;
		second.length = bad[i].length;
		memcpy(body + 96, &second, sizeof(second));
		run_hostile(&h, body, 96 + bad[i].have, "a frame that cannot be");
	}
	/* Padding that leads nowhere. */
	run_hostile(&h, body, 80, "a frame that cannot be");
}

/* Credits that were never given, and grants that do not fit the message. */
Test(verbs_setup, hostile_numbers)
{
	struct verbs_frame_header h = {.magic = VERBS_MAGIC, .type = VERBS_CTS, .count = 1};
	struct verbs_grant grants[] = {
		{.size = 0},
		{.size = 9 << 20},
		{.offset = 20000, .size = 1},
		{.offset = 19000, .size = 4096},
		{.offset = UINT64_MAX - 10, .size = 100},
	};

	for (size_t i = 0; i < ARRAY_SIZE(grants); i++) {
		struct vmsg *m;
		struct vnet n;

		vnet_init(&n, 42, 1, NULL, false);
		m = vmsgs_new(&n, 1, 1);
		vmsg_init(&m[0], 20000, 1, V_DIRECT);
		n.end[0].nincoming = 1;
		verbs_send(n.end[1].peer, &m[0].send);
		h.to = 1u << 16; /* its first handle: slot 0, first use */
		h.length = sizeof(grants[i]);
		h.seq = 0;
		send_raw(&n, &h, &grants[i], sizeof(grants[i]));
		for (int k = 0; k < 3000 && !n.end[1].down; k++) {
			vnet_turn(&n);
		}
		cr_assert(n.end[1].down && strstr(n.end[1].reason, "a grant that cannot be"),
			  "%zu %s", i, n.end[1].reason);
		cr_assert(m[0].sent == 1 && m[0].status < 0);
		/* Another transport can be stopped before memory is let go. */
		cr_assert_eq(n.end[1].sent_before_down, 0);
		vnet_fini(&n);
		vmsgs_free(m, 1);
	}
}

/* Random frames: never a crash, never a hang of the test; what they do is the peer's own harm. */
Test(verbs_setup, random_frames)
{
	for (uint64_t seed = 1; seed <= 400; seed++) {
		struct verbs_frame_header h = {.magic = VERBS_MAGIC};
		uint8_t body[512];
		struct vnet n;

		vnet_init(&n, seed, 2, NULL, false);
		n.end[1].nincoming = 0;
		for (int k = 0; k < 4; k++) {
			uint32_t length = (uint32_t)vrandom(&n, sizeof(body));

			h.type = (uint8_t)(VERBS_CTS + vrandom(&n, VERBS_CHECK - VERBS_CTS + 1));
			if (h.type == VERBS_OPEN || h.type == VERBS_OPENED) {
				length = sizeof(struct verbs_blob);
			} else if (h.type == VERBS_RESUME || h.type == VERBS_STATE) {
				length &= ~3u;
			}
			for (uint32_t i = 0; i < length; i++) {
				body[i] = (uint8_t)(vrandom(&n, 3) ? 0 : vrandom(&n, 256));
			}
			h.rail = (uint8_t)vrandom(&n, 3);
			h.epoch = (uint32_t)vrandom(&n, 4);
			h.count = (uint16_t)(length / 4);
			h.to = (uint32_t)vrandom(&n, 3);
			h.length = length;
			h.seq = 0;
			if (n.end[0].peer->rails[0]->state == VERBS_RAIL_UP) {
				send_raw(&n, &h, body, length);
			}
			for (int i = 0; i < 50; i++) {
				vnet_turn(&n);
			}
		}
		vnet_fini(&n);
	}
}
