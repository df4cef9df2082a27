/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fuzz the engine: a client whose descriptors lie and a peer daemon that sends anything
 *
 * One real engine with its thread; two local ranks in one session, a third rank on a peer that is a
 * socket in our hands. Input is commands: post a descriptor, send a message, wait a little, cut the
 * peer. Whatever they say, everything must come back when it is removed, and every posted ticket
 * must be completed by then.
 *
 * Thread: control of the engine      Owns: everything it makes      Locks: none
 */
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "engine/engine.h"
#include "mem/region.h"
#include "proto/base.h"
#include "proto/ring.h"
#include "tests/fuzz/fuzz.h"
#include "transport/wire.h"

#define MEM (64u << 10)
#define POSTS 64

struct rig {
	struct engine *engine;
	struct engine_peer *peer;
	struct engine_session *session;
	struct engine_comm *comm;
	struct coll_layout *layout;
	struct coll_tuning tuning;
	struct comm_view *view;
	struct region *region;
	void *page;
	struct ring_producer ring;
	int bell, event, wire;
	int pending;
	uint32_t posted;
	uint64_t seq;
	bool corrupt;
};

static void on_failed(void *arg, void *user, const struct engine_failure *f)
{
	fuzz_check(f->status != STATUS_OK);
	(void)arg;
	(void)user;
}

static void on_corrupt(void *arg, void *user, const char *reason)
{
	struct rig *r = arg;

	fuzz_check(reason);
	(void)user;
	r->corrupt = true;
}

static void on_down(void *arg, void *user, const char *what, int error, const char *reason)
{
	(void)arg;
	(void)user;
	(void)what;
	(void)error;
	fuzz_check(reason);
}

static const struct engine_events events = {on_failed, on_corrupt, on_down};

static void done(void *arg)
{
	((struct rig *)arg)->pending--;
}

static void settle(struct rig *r)
{
	time_t end = time(NULL) + 20;

	while (r->pending) {
		engine_dispatch(r->engine);
		sched_yield();
		fuzz_check(time(NULL) <= end);
	}
}

static void *map(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	fuzz_check(p != MAP_FAILED);
	return p;
}

static void rig_open_comm(struct rig *r)
{
	static const uint32_t host_of[] = {0, 0, 1};
	struct engine_comm_rank ranks[] = {{r->session, 1, 0}, {r->session, 2, 1}};
	struct engine_peer *peers[] = {NULL, r->peer};
	struct engine_comm_params p = {
		.uid = 7,
		.tuning = &r->tuning,
		.peers = peers,
		.ranks = ranks,
		.arrival_timeout_ms = 10000,
		.transfer_timeout_ms = 10000,
	};

	fuzz_check(coll_layout_new(host_of, 3, 2, &r->layout) == 0);
	fuzz_check(comm_view_new(2, &r->view) == 0);
	p.layout = r->layout;
	p.view = r->view;
	r->pending++;
	fuzz_check(engine_comm_add(r->engine, &p, done, r, &r->comm) == 0);
	settle(r);
}

static void rig_open(struct rig *r)
{
	struct engine_options o = {
		.chunk = 256, .eager = 256, .eager_credits = 4, .spin_us = 0, .cpu = -1};
	struct quota_charge none = {0};
	int fds[2];

	memset(r, 0, sizeof(*r));
	fuzz_check(engine_new(&o, &events, r, &r->engine) == 0);
	fuzz_check(engine_start(r->engine) == 0);
	fuzz_check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
	fuzz_check(engine_peer_add(r->engine, NULL, &r->peer) == 0);
	fuzz_check(engine_peer_stream(r->engine, r->peer, fds[0], 0) == 0);
	r->wire = fds[1];
	r->page = map(SHM_SIZE);
	shm_format(r->page);
	ring_producer_init(&r->ring, r->page);
	r->bell = eventfd(0, EFD_NONBLOCK);
	r->event = eventfd(0, EFD_NONBLOCK);
	fuzz_check(region_new(map(MEM), MEM, MEM, &none, &r->region) == 0);
	fuzz_check(engine_session_add(r->engine, r->page, r->bell, r->event, r, &r->session) == 0);
	fuzz_check(engine_region_add(r->engine, r->session, 1, r->region) == 0);
	rig_open_comm(r);
}

/* All posted tickets are completed, unless the session was given up. */
static void rig_check_cells(struct rig *r)
{
	struct shm_cell *cells = shm_cells(r->page);

	for (uint32_t t = 0; t < r->posted && !r->corrupt; t++) {
		fuzz_check(atomic_load(&cells[t].generation) == 1);
		fuzz_check(cells[t].status < STATUS_COUNT_);
	}
}

static void rig_close(struct rig *r)
{
	time_t end = time(NULL) + 20;

	while (!r->corrupt && atomic_load(&((struct shm_header *)r->page)->head) != r->ring.tail) {
		engine_dispatch(r->engine);
		sched_yield();
		fuzz_check(time(NULL) <= end);
	}
	/* The order of control: peer lost, then membership, then the session. */
	r->pending = 1;
	engine_peer_remove(r->engine, r->peer, done, r);
	settle(r);
	r->pending = 1;
	engine_comm_remove(r->engine, r->comm, done, r);
	settle(r);
	rig_check_cells(r);
	r->pending = 1; /* the region goes with the session */
	engine_session_remove(r->engine, r->session, done, r);
	settle(r);
	engine_stop(r->engine, STATUS_SHUTDOWN);
	engine_free(r->engine);
	region_unref(r->region);
	munmap(r->page, SHM_SIZE);
	comm_view_free(r->view);
	coll_layout_free(r->layout);
	close(r->bell);
	close(r->event);
	close(r->wire);
}

/* 20 bytes: one descriptor, mostly plausible. */
static void post(struct rig *r, const uint8_t *b)
{
	struct shm_desc d = {
		.ticket = r->posted,
		.generation = 1,
		.comm = b[0] % 4,
		.kind = b[1] % (COLL_COUNT_ + 1),
		.dtype = b[2] % (DTYPE_COUNT_ + 1),
		.op = b[3] % (REDOP_COUNT_ + 1),
		.root = b[4] % 4,
		.send_buf = b[5] % 3,
		.recv_buf = b[6] % 3,
		.args_buf = b[7] % 3,
		.count = b[8] | (uint64_t)b[9] << (b[10] % 60),
		.send_off = (uint64_t)b[11] << (b[12] % 17),
		.recv_off = (uint64_t)b[13] << (b[14] % 17),
		.args_off = (uint64_t)b[15] << (b[16] % 17),
		.seq = b[17] < 240 ? r->seq : b[17],
		.scalar = b[18],
	};

	if (r->posted == POSTS || ring_push(&r->ring, &d) != 0) {
		return;
	}
	r->posted++;
	r->seq += b[19] & 1;
	if (ring_publish(&r->ring)) {
		uint64_t one = 1;

		fuzz_check(write(r->bell, &one, sizeof(one)) == sizeof(one));
	}
}

/* 14 bytes and a payload of zeros: one fragment. */
static void arrive(struct rig *r, const uint8_t *b)
{
	uint8_t buf[WIRE_SIZE + 256] = {0};
	struct wire_header h = {
		.magic = WIRE_MAGIC,
		.type = b[0] % 9,
		.flags = b[1] & 1,
		.fragment = b[2],
		.length = b[2] + (b[3] > 128 ? b[3] : 0),
		.comm = b[4] > 250 ? 8 : 7,
		.seq = b[5],
		.segment = b[6] % 8,
		.tag = b[7] % 8,
		.credits = b[8],
		.kind = b[9] % COLL_COUNT_,
		.dtype = b[10] % DTYPE_COUNT_,
		.op = b[11] % REDOP_COUNT_,
		.root = b[12] % 4,
		.count = b[13],
	};

	memcpy(buf, &h, sizeof(h));
	(void)!send(r->wire, buf, sizeof(h) + h.fragment, MSG_NOSIGNAL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct rig r;

	rig_open(&r);
	while (size > 20) {
		uint8_t what = data[0];

		if (what < 100) {
			post(&r, data + 1);
		} else if (what < 220) {
			arrive(&r, data + 1);
		} else if (what < 250) {
			usleep(what);
			engine_dispatch(r.engine);
		} else {
			shutdown(r.wire, SHUT_RDWR);
		}
		data += 21;
		size -= 21;
	}
	rig_close(&r);
	return 0;
}
