/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * gpu_engine: allreduces of two hosts that are engines of this process, on memory of one GPU
 *
 * The daemon's half alone: no client library, no control plane. Each host has an engine with its
 * threads and a GPU layer of its own; they are joined by TCP connections over loopback. Prints for
 * each size the median time and bus bandwidth (GB/s), and whether the sums are right.
 *
 *   gpu_engine [KEY=VALUE]...   chunk=KiB io=N reduce=N streams=N reps=N sizes=BYTES,...
 *                               host=1 (memory of the host instead) stream=1 (posts are gated by
 *                               a GPU stream, which also waits for the result) spin=US
 *                               threads=1 (after each size the CPU time of each thread)
 *
 * Exits with 77 without a GPU.
 *
 * Thread: main      Owns: everything      Locks: none
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "coll/coll.h"
#include "engine/engine.h"
#include "gpu/gpu.h"
#include "mem/region.h"
#include "proto/base.h"
#include "proto/cuda_abi.h"
#include "proto/ring.h"
#include "util/clock.h"

#define HOSTS 2
#define MEM (UINT64_C(512) << 20) /* in: first half */
#define UNIT (2u << 20)
#define MAX_SIZES 32
#define MAX_REPS 1000

static void check(bool ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "gpu_engine: %s\n", what);
		exit(EXIT_FAILURE);
	}
}

struct settings {
	unsigned int chunk, io, reduce, streams, reps, host, stream, spin, threads;
	const char *sizes;
};

struct rank {
	struct engine *engine;
	struct engine_peer *peer;
	struct gpu *gpu;
	struct comm_view *view;
	struct engine_comm *comm;
	struct engine_session *session;
	struct ring_producer ring;
	struct region *region;
	void *page;
	CUdeviceptr page_dev;
	int bell, event;
	uint32_t generation;
	uint64_t seq;
	CUdeviceptr mem; /* of the "trainer" */
	CUstream stream;
};

struct world {
	struct settings o;
	struct cuda_abi cuda;
	struct coll_layout *layout;
	struct coll_tuning tuning;
	struct rank ranks[HOSTS];
	int pending;
	bool answered;
};

/* ---- events ------------------------------------------------------------------------------- */

static void on_failed(void *arg, void *user, const struct engine_failure *f)
{
	(void)arg;
	(void)user;
	fprintf(stderr, "gpu_engine: the communicator failed: cause %d, %s\n", (int)f->cause,
		f->reason ? f->reason : "");
	exit(EXIT_FAILURE);
}

static void on_corrupt(void *arg, void *user, const char *reason)
{
	(void)arg;
	(void)user;
	check(false, reason);
}

static void on_down(void *arg, void *user, const char *what, int error, const char *reason)
{
	(void)arg;
	(void)user;
	(void)what;
	(void)error;
	check(false, reason);
}

static const struct engine_events events = {
	.comm_failed = on_failed,
	.session_corrupt = on_corrupt,
	.peer_down = on_down,
};

static void on_done(void *arg)
{
	struct world *w = arg;

	w->pending--;
}

static void pump(struct world *w)
{
	for (int h = 0; h < HOSTS; h++) {
		engine_dispatch(w->ranks[h].engine);
		gpu_dispatch(w->ranks[h].gpu);
	}
}

static void settle(struct world *w)
{
	while (w->pending) {
		pump(w);
		sched_yield();
	}
}

/* ---- memory ------------------------------------------------------------------------------- */

static void on_gone(void *arg)
{
	on_done(arg);
}

static void on_answer(struct gpu_request *request)
{
	struct world *w = request->arg;

	w->answered = true;
}

static void wait_answer(struct world *w, const struct gpu_request *request)
{
	while (!w->answered) {
		pump(w);
		sched_yield();
	}
	w->answered = false;
	check(request->status == STATUS_OK, request->text);
}

static struct gpu_memory *import(struct world *w, struct rank *k, int fd)
{
	struct gpu_request request = {
		.done = on_answer,
		.arg = w,
		.handle = GPU_HANDLE_VMM,
		.size = MEM,
		.fd = fd,
		.gone = on_gone,
		.gone_arg = w,
	};
	struct gpu_piece piece = {.size = MEM};
	CUuuid uuid;

	check(w->cuda.DeviceGetUuid(&uuid, 0) == CUDA_SUCCESS, "no UUID");
	memcpy(request.uuid, uuid.bytes, sizeof(request.uuid));
	gpu_open(k->gpu, &request);
	wait_answer(w, &request);
	piece.alloc = request.alloc;
	request.npieces = 1;
	request.pieces = &piece;
	gpu_map(k->gpu, &request);
	wait_answer(w, &request);
	gpu_alloc_unref(piece.alloc);
	return request.memory;
}

static void make_memory(struct world *w, struct rank *k)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
	};
	CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle;
	struct quota_charge none = {0};
	int fd;

	if (w->o.host) {
		void *p =
			mmap(NULL, MEM, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

		check(p != MAP_FAILED, "mmap");
		check(region_new(p, MEM, MEM, &none, &k->region) == 0, "region");
		k->mem = (uintptr_t)p;
		return;
	}
	check(w->cuda.MemCreate(&handle, MEM, &prop, 0) == CUDA_SUCCESS, "cuMemCreate");
	check(w->cuda.MemExportToShareableHandle(&fd, handle, prop.requestedHandleTypes, 0) ==
		      CUDA_SUCCESS,
	      "export");
	check(w->cuda.MemAddressReserve(&k->mem, MEM, UNIT, 0, 0) == CUDA_SUCCESS, "reserve");
	check(w->cuda.MemMap(k->mem, MEM, 0, handle, 0) == CUDA_SUCCESS, "map");
	check(w->cuda.MemSetAccess(k->mem, MEM, &access, 1) == CUDA_SUCCESS, "access");
	check(region_new_gpu(import(w, k, fd), &k->region) == 0, "region");
	close(fd);
}

/* ---- hosts -------------------------------------------------------------------------------- */

static void connect_pair(int *ret_a, int *ret_b)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(at);
	int l = socket(AF_INET, SOCK_STREAM, 0);

	check(bind(l, (struct sockaddr *)&at, size) == 0 && listen(l, 1) == 0, "listen");
	check(getsockname(l, (struct sockaddr *)&at, &size) == 0, "getsockname");
	*ret_a = socket(AF_INET, SOCK_STREAM, 0);
	check(connect(*ret_a, (struct sockaddr *)&at, size) == 0, "connect");
	*ret_b = accept(l, NULL, NULL);
	close(l);
}

static void make_host(struct world *w, struct rank *k)
{
	struct engine_options o = {
		.chunk = w->o.chunk << 10,
		.eager = 64 << 10,
		.eager_credits = 32,
		.spin_us = w->o.spin,
		.cpu = -1,
		.reduce_threads = (int)w->o.reduce,
		.io_threads = w->o.io,
		.reduce_min = 64 << 10,
		.congestion = "cubic",
		.user_timeout_ms = 30000,
	};
	struct gpu_options g = {.staging = UINT64_C(1) << 30, .spin_us = w->o.spin};

	check(gpu_new(&g, &k->gpu) == 0, "gpu_new");
	check(engine_new(&o, &events, w, &k->engine) == 0, "engine_new");
	check(engine_start(k->engine) == 0, "engine_start");
	check(engine_peer_add(k->engine, NULL, &k->peer) == 0, "peer");
}

static void join_hosts(struct world *w)
{
	for (unsigned int s = 0; s < w->o.streams; s++) {
		int a, b;

		connect_pair(&a, &b);
		check(engine_peer_stream(w->ranks[0].engine, w->ranks[0].peer, a, s) == 0,
		      "stream");
		check(engine_peer_stream(w->ranks[1].engine, w->ranks[1].peer, b, s) == 0,
		      "stream");
	}
}

static void make_rank(struct world *w, struct rank *k)
{
	k->page = mmap(NULL, SHM_FULL_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		       0);
	check(k->page != MAP_FAILED, "page");
	shm_format(k->page);
	shm_format_gates(k->page);
	ring_producer_init(&k->ring, k->page);
	k->bell = eventfd(0, EFD_NONBLOCK);
	k->event = eventfd(0, EFD_NONBLOCK);
	check(engine_session_add(k->engine, k->page, k->bell, k->event, k, &k->session) == 0,
	      "session");
	make_memory(w, k);
	check(engine_region_add(k->engine, k->session, 1, k->region) == 0, "region");
	if (w->o.stream) {
		check(w->cuda.MemHostRegister(k->page, SHM_FULL_SIZE,
					      CU_MEMHOSTREGISTER_DEVICEMAP) == CUDA_SUCCESS,
		      "register");
		check(w->cuda.MemHostGetDevicePointer(&k->page_dev, k->page, 0) == CUDA_SUCCESS,
		      "pointer");
		check(w->cuda.StreamCreate(&k->stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS,
		      "stream");
	}
}

static void make_comm(struct world *w, uint32_t h)
{
	struct engine_peer *peers[HOSTS] = {NULL};
	struct engine_comm_rank rank = {w->ranks[h].session, 1, h};
	struct engine_comm_params p = {
		.uid = 7,
		.layout = w->layout,
		.tuning = &w->tuning,
		.host = h,
		.peers = peers,
		.ranks = &rank,
		.transfer_timeout_ms = 30000,
	};

	peers[1 - h] = w->ranks[h].peer;
	check(comm_view_new(1, &w->ranks[h].view) == 0, "view");
	p.view = w->ranks[h].view;
	w->pending++;
	check(engine_comm_add(w->ranks[h].engine, &p, on_done, w, &w->ranks[h].comm) == 0, "comm");
}

/* ---- CPU time ------------------------------------------------------------------------------ */

/* Clock ticks of a thread in user and system mode, and its name. */
static bool thread_times(const char *tid, char *name, unsigned long *user, unsigned long *sys)
{
	char path[300];
	FILE *f;
	bool ok;

	snprintf(path, sizeof(path), "/proc/self/task/%s/stat", tid);
	f = fopen(path, "re");
	if (!f) {
		return false;
	}
	ok = fscanf(f, "%*d (%31[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", name,
		    user, sys) == 3;
	fclose(f);
	return ok;
}

#define MAX_THREADS 256

/* What threads used since the last call. */
static void show_threads(struct world *w, uint64_t wall)
{
	static struct {
		long tid;
		unsigned long user, sys;
	} last[MAX_THREADS];
	DIR *dir = opendir("/proc/self/task");
	double ticks = (double)wall / 1e9 * (double)sysconf(_SC_CLK_TCK);
	struct dirent *e;

	while (w->o.threads && dir && (e = readdir(dir))) {
		long tid = strtol(e->d_name, NULL, 10);
		unsigned long user, sys;
		char name[32];
		size_t at = 0;

		if (tid == 0 || !thread_times(e->d_name, name, &user, &sys)) {
			continue;
		}
		while (at < MAX_THREADS - 1 && last[at].tid && last[at].tid != tid) {
			at++;
		}
		if (user + sys - last[at].user - last[at].sys > ticks / 50) {
			printf("   %-12s user %3.0f %%  system %3.0f %%\n", name,
			       100.0 * (double)(user - last[at].user) / ticks,
			       100.0 * (double)(sys - last[at].sys) / ticks);
		}
		last[at].tid = tid;
		last[at].user = user;
		last[at].sys = sys;
	}
	if (dir) {
		closedir(dir);
	}
}

/* ---- operations --------------------------------------------------------------------------- */

static uint32_t post(struct world *w, uint32_t r, uint64_t count)
{
	struct rank *k = &w->ranks[r];
	struct shm_desc d = {
		.ticket = (uint32_t)(k->seq % LIMIT_TICKETS),
		.generation = ++k->generation,
		.comm = 1,
		.kind = COLL_ALLREDUCE,
		.dtype = DTYPE_F32,
		.op = REDOP_SUM,
		.flags = w->o.stream ? SHM_DESC_GATED : 0,
		.send_buf = 1,
		.recv_buf = 1,
		.count = count,
		.recv_off = MEM / 2,
		.seq = k->seq++,
	};

	check(ring_push(&k->ring, &d) == 0, "ring");
	if (ring_publish(&k->ring)) {
		uint64_t one = 1;

		check(write(k->bell, &one, sizeof(one)) == sizeof(one), "bell");
	}
	if (w->o.stream) {
		check(w->cuda.StreamWriteValue32(k->stream,
						 k->page_dev + SHM_GATE_OFF + d.ticket * 4,
						 d.generation, 0) == CUDA_SUCCESS,
		      "write value");
		check(w->cuda.StreamWaitValue32(
			      k->stream,
			      k->page_dev + SHM_CELL_OFF + d.ticket * sizeof(struct shm_cell),
			      d.generation, CU_STREAM_WAIT_VALUE_EQ) == CUDA_SUCCESS,
		      "wait value");
	}
	return d.ticket;
}

static void await(struct world *w, uint32_t r, uint32_t ticket)
{
	struct rank *k = &w->ranks[r];
	struct shm_cell *cell = &shm_cells(k->page)[ticket];

	/* Not StreamSynchronize(): this thread is also the one that builds plans. */
	while (w->o.stream && w->cuda.StreamQuery(k->stream) == CUDA_ERROR_NOT_READY) {
		pump(w);
	}
	while (atomic_load_explicit(&cell->generation, memory_order_acquire) != k->generation) {
		pump(w);
	}
	check(cell->status == STATUS_OK, "an operation failed");
}

static void put(struct world *w, CUdeviceptr to, const void *from, uint64_t size)
{
	if (w->o.host) {
		memcpy((void *)(uintptr_t)to, from, size);
	} else {
		check(w->cuda.Memcpy(to, (uintptr_t)from, size) == CUDA_SUCCESS, "memcpy");
	}
}

static void get(struct world *w, void *to, CUdeviceptr from, uint64_t size)
{
	if (w->o.host) {
		memcpy(to, (void *)(uintptr_t)from, size);
	} else {
		check(w->cuda.Memcpy((uintptr_t)to, from, size) == CUDA_SUCCESS, "memcpy");
	}
}

static bool right(struct world *w, float *buf, uint64_t count)
{
	for (int r = 0; r < HOSTS; r++) {
		get(w, buf, w->ranks[r].mem + MEM / 2, count * sizeof(float));
		for (uint64_t i = 0; i < count; i++) {
			if (buf[i] != (float)(i % 4096) * 3 + 1) {
				fprintf(stderr, "rank %d [%zu]: %g\n", r, (size_t)i, buf[i]);
				return false;
			}
		}
	}
	return true;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void measure(struct world *w, uint64_t bytes, float *buf)
{
	uint64_t count = MAX(bytes / sizeof(float), 1);
	unsigned int reps = MIN(bytes >= (32u << 20) ? w->o.reps / 4 + 1 : w->o.reps, MAX_REPS);
	uint64_t times[MAX_REPS], begin, started, wall;
	double us;

	for (int r = 0; r < HOSTS; r++) {
		for (uint64_t i = 0; i < count; i++) {
			buf[i] = (float)(i % 4096) * (float)(r + 1) + (float)r;
		}
		put(w, w->ranks[r].mem, buf, count * sizeof(float));
	}
	show_threads(w, UINT64_MAX);
	started = clock_monotonic();
	for (unsigned int i = 0; i < reps; i++) {
		uint32_t t[HOSTS];

		begin = clock_monotonic();
		for (uint32_t r = 0; r < HOSTS; r++) {
			t[r] = post(w, r, count);
		}
		for (uint32_t r = 0; r < HOSTS; r++) {
			await(w, r, t[r]);
		}
		times[i] = clock_monotonic() - begin;
	}
	wall = clock_monotonic() - started;
	qsort(times, reps, sizeof(times[0]), by_value);
	us = (double)times[reps / 2] / 1e3;
	printf("%12zu bytes %10.1f us  p10 %10.1f us  busbw %6.2f GB/s  %s\n", (size_t)bytes, us,
	       (double)times[reps / 10] / 1e3, (double)bytes / us / 1e3,
	       right(w, buf, count) ? "right" : "WRONG");
	show_threads(w, wall);
	fflush(stdout);
}

/* ---- main --------------------------------------------------------------------------------- */

static void parse(struct settings *o, int argc, char **argv)
{
	struct {
		const char *name;
		unsigned int *value;
	} const keys[] = {
		{"chunk", &o->chunk},	  {"io", &o->io},     {"reduce", &o->reduce},
		{"streams", &o->streams}, {"reps", &o->reps}, {"host", &o->host},
		{"stream", &o->stream},	  {"spin", &o->spin}, {"threads", &o->threads},
	};

	for (int i = 1; i < argc; i++) {
		char *eq = strchr(argv[i], '=');

		check(eq, "an argument is KEY=VALUE");
		*eq = '\0';
		if (strcmp(argv[i], "sizes") == 0) {
			o->sizes = eq + 1;
		}
		for (size_t k = 0; k < ARRAY_SIZE(keys); k++) {
			if (strcmp(argv[i], keys[k].name) == 0) {
				*keys[k].value = (unsigned int)strtoul(eq + 1, NULL, 10);
			}
		}
	}
}

static void show_status(struct world *w)
{
	struct gpu_status s;

	for (unsigned int i = 0; gpu_get_status(w->ranks[0].gpu, i, &s); i++) {
		printf("%s %s %s node %d: staging peak %zu, pinned %zu; copied %zu in, %zu out in "
		       "%zu "
		       "jobs, %zu failed\n",
		       s.uuid, s.name, s.bus, s.node, (size_t)s.staging_peak,
		       (size_t)s.staging_pinned, (size_t)s.bytes_in, (size_t)s.bytes_out,
		       (size_t)s.jobs, (size_t)s.jobs_failed);
	}
}

static void start_cuda(struct world *w)
{
	char err[256];
	CUcontext ctx;

	if (cuda_abi_open(NULL, &w->cuda, err, sizeof(err)) < 0 || w->cuda.Init(0)) {
		printf("gpu_engine: no GPU here\n");
		exit(77);
	}
	check(w->cuda.DevicePrimaryCtxRetain(&ctx, 0) == CUDA_SUCCESS, "context");
	check(w->cuda.CtxSetCurrent(ctx) == CUDA_SUCCESS, "context");
}

int main(int argc, char **argv)
{
	static struct world w = {
		.o = {.chunk = 256, .io = 4, .reduce = 4, .streams = 5, .reps = 40, .spin = 50}};
	const uint32_t host_of[HOSTS] = {0, 1};
	float *buf = malloc(MEM / 2);
	const char *at;

	check(buf, "no memory");
	w.o.sizes = "8,65536,1048576,8388608,67108864,268435456";
	parse(&w.o, argc, argv);
	start_cuda(&w);
	check(coll_layout_new(host_of, HOSTS, HOSTS, &w.layout) == 0, "layout");
	for (int h = 0; h < HOSTS; h++) {
		make_host(&w, &w.ranks[h]);
	}
	join_hosts(&w);
	for (int h = 0; h < HOSTS; h++) {
		make_rank(&w, &w.ranks[h]);
	}
	for (uint32_t h = 0; h < HOSTS; h++) {
		make_comm(&w, h);
	}
	settle(&w);
	printf("chunk %u KiB, io %u, reduce %u, streams %u%s%s\n", w.o.chunk, w.o.io, w.o.reduce,
	       w.o.streams, w.o.host ? ", memory of the host" : "",
	       w.o.stream ? ", by a stream" : "");
	for (at = w.o.sizes; *at; at += strcspn(at, ","), at += *at == ',') {
		measure(&w, strtoull(at, NULL, 10), buf);
	}
	show_status(&w);
	_exit(EXIT_SUCCESS); /* the system gives everything back */
}
