/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Verbs pair: latency, bandwidth, and a check of random messages
 *
 *   verbs_pair --listen [PORT]
 *   verbs_pair --connect ADDRESS [PORT] [--mode lat|bw|check] [--rails N] [--size N] [--count N]
 *              [--window N] [--land] [--plain] [--seconds N] [--qps N] [--fragment N] [--direct N]
 *              [--depth N] [--traffic-class N]
 *
 * Prints one line of results at the connecting end. Exit code 77: no RDMA device.
 *
 * Thread: one      Owns: nothing      Locks: none
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/device/verbs-pair/pair.h"

#define WINDOW_MAX 64
#define PORT "18515"

enum tag { TAG_PING = 1, TAG_PONG, TAG_DATA, TAG_LAST };

struct slot {
	struct transport_send send;
	struct iovec iov;
	struct transport_recv recv;
	struct iovec recv_iov;
	bool busy;
	uint32_t seq;
	uint64_t size;
};

struct run {
	struct slot out[WINDOW_MAX];
	struct slot in[2 * WINDOW_MAX];
	uint32_t arrived, sent;
	uint64_t bytes;
	uint64_t bad;
	bool last;
};

static uint8_t pattern(uint32_t seq, uint64_t offset)
{
	return (uint8_t)(seq * 37 + offset + (offset >> 8) * 3 + (offset >> 16) * 5);
}

static int on_begin(void *arg, struct verbs_peer *peer, const struct wire_header *header,
		    struct transport_recv **ret)
{
	struct pair *p = arg;
	struct run *run = p->run;
	uint64_t room = p->memory_size / 2 / (2 * WINDOW_MAX);

	for (uint32_t i = 0; i < ARRAY_SIZE(run->in); i++) {
		struct slot *s = &run->in[i];

		if (s->busy) {
			continue;
		}
		memset(&s->recv, 0, sizeof(s->recv));
		s->busy = true;
		s->seq = header->seq;
		s->size = header->length;
		s->recv.user = s;
		s->recv_iov.iov_base =
			p->memory + p->memory_size / 2 + (p->plan.mode[0] == 'c' ? i * room : 0);
		s->recv_iov.iov_len = header->length;
		if (!p->plan.land || (p->plan.mode[0] == 'c' && header->seq % 3)) {
			s->recv.iov = header->length ? &s->recv_iov : NULL;
			s->recv.niov = header->length ? 1 : 0;
		}
		run->last = run->last || header->tag == TAG_LAST;
		*ret = &s->recv;
		return 0;
	}
	return -ENOBUFS;
}

static void on_fragment(void *arg, struct transport_recv *recv, const void *data, uint64_t offset,
			uint64_t size)
{
	struct slot *s = recv->user;
	struct pair *p = arg;
	struct run *run = p->run;
	const uint8_t *at = data ? data : (const uint8_t *)s->recv_iov.iov_base + offset;

	run->bytes += size;
	for (uint64_t i = 0; p->plan.mode[0] == 'c' && i < size; i++) {
		run->bad += at[i] != pattern(s->seq, offset + i);
	}
}

static void on_done(void *arg, struct transport_recv *recv)
{
	struct slot *s = recv->user;
	struct pair *p = arg;
	struct run *run = p->run;

	/* Direct memory is looked at once more, when it is complete. */
	for (uint64_t i = 0; p->plan.mode[0] == 'c' && recv->iov && i < s->size; i++) {
		run->bad += ((uint8_t *)s->recv_iov.iov_base)[i] != pattern(s->seq, i);
	}
	s->busy = false;
	run->arrived++;
}

static void on_down(void *arg, struct verbs_peer *peer, int error, const char *reason)
{
	struct pair *p = arg;

	p->down = true;
	snprintf(p->reason, sizeof(p->reason), "%s", reason);
}

static void on_rail(void *arg, struct verbs_peer *peer, uint32_t rail, enum verbs_rail_state state,
		    const char *text)
{
	struct pair *p = arg;

	p->downs += state == VERBS_RAIL_DOWN;
	fprintf(stderr, "%s: %s\n", state == VERBS_RAIL_UP ? "up" : "down", text);
}

static void on_sent(struct transport_send *send, int status)
{
	struct slot *s = send->user;

	s->busy = false;
}

static const struct verbs_handler handler = {on_begin, on_fragment,  on_done, on_down,
					     on_rail,  pair_control, NULL,    NULL};

static void must_be_up(const struct pair *p)
{
	if (p->down) {
		pair_die("down: %s", p->reason);
	}
}

static void post(struct pair *p, struct slot *s, uint8_t *data, uint64_t size, enum tag tag)
{
	struct run *run = p->run;

	s->busy = true;
	s->iov = (struct iovec){data, size};
	s->send = (struct transport_send){
		.header = {.type = WIRE_DATA, .tag = tag, .seq = run->sent++},
		.iov = &s->iov,
		.niov = size ? 1 : 0,
		.length = size,
		.done = on_sent,
		.user = s,
	};
	verbs_send(p->peer, &s->send);
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void run_latency(struct pair *p)
{
	struct run *run = p->run;
	uint64_t *times = calloc(p->plan.count, sizeof(*times));
	uint32_t count = p->plan.count;

	for (uint32_t i = 0; i < count; i++) {
		uint64_t start = clock_monotonic();

		if (!p->listens) {
			post(p, &run->out[0], p->memory, p->plan.size, TAG_PING);
		}
		while ((run->arrived <= i || run->out[0].busy) && !p->down) {
			pair_turn(p);
		}
		must_be_up(p);
		if (p->listens) {
			post(p, &run->out[0], p->memory, p->plan.size, TAG_PONG);
		}
		times[i] = clock_monotonic() - start;
	}
	if (!p->listens) {
		qsort(times, count, sizeof(*times), compare);
		printf("mode=lat bytes=%" PRIu64 " rtt_median_us=%.1f rtt_min_us=%.1f "
		       "rtt_p99_us=%.1f half_median_us=%.1f\n",
		       p->plan.size, (double)times[count / 2] / 1e3, (double)times[0] / 1e3,
		       (double)times[count - 1 - count / 100] / 1e3,
		       (double)times[count / 2] / 2e3);
	}
	free(times);
}

static struct slot *free_slot(struct pair *p)
{
	struct run *run = p->run;

	for (;;) {
		for (uint32_t i = 0; i < p->plan.window; i++) {
			if (!run->out[i].busy) {
				return &run->out[i];
			}
		}
		pair_turn(p);
		must_be_up(p);
	}
}

static bool any_busy(const struct run *run)
{
	for (uint32_t i = 0; i < WINDOW_MAX; i++) {
		if (run->out[i].busy) {
			return true;
		}
	}
	return false;
}

static void print_bandwidth(const struct pair *p, uint64_t ns, const struct verbs_stats *before)
{
	struct verbs_stats s;
	double bytes = (double)p->plan.size * p->plan.count;

	verbs_get_stats(p->v, &s);
	printf("mode=bw bytes=%" PRIu64 " count=%u MBps=%.1f copied=%" PRIu64 " writes=%" PRIu64
	       " frames=%" PRIu64 " wrs=%" PRIu64 " doorbells=%" PRIu64 " completions=%" PRIu64
	       " events=%" PRIu64 " rails=%u\n",
	       p->plan.size, p->plan.count, bytes / (double)ns * 1e3,
	       s.bytes_copied - before->bytes_copied, s.writes_sent - before->writes_sent,
	       s.frames_sent - before->frames_sent, s.send_wrs - before->send_wrs,
	       s.send_doorbells - before->send_doorbells, s.completions - before->completions,
	       s.events - before->events, p->nrails);
}

static void run_bandwidth(struct pair *p)
{
	struct run *run = p->run;
	struct verbs_stats before;
	uint64_t start = clock_monotonic();

	verbs_get_stats(p->v, &before);
	for (uint32_t i = 0; i < p->plan.count && !p->listens; i++) {
		post(p, free_slot(p), p->memory, p->plan.size, TAG_DATA);
	}
	while (p->listens ? run->arrived < p->plan.count : any_busy(run)) {
		pair_turn(p);
		must_be_up(p);
	}
	if (!p->listens) {
		print_bandwidth(p, clock_monotonic() - start, &before);
	} else if (run->bytes != p->plan.size * p->plan.count) {
		pair_die("%" PRIu64 " bytes came", run->bytes);
	} else {
		verbs_get_stats(p->v, &before);
		fprintf(stderr,
			"receiver: copied=%" PRIu64 " frames=%" PRIu64 " recv_wrs=%" PRIu64 "\n",
			before.bytes_copied, before.frames_sent, before.recv_wrs);
	}
}

/* Both ends send messages of random sizes for a while, whose bytes the other knows. */
static void run_check(struct pair *p)
{
	struct run *run = p->run;
	uint64_t end = clock_monotonic() + p->plan.seconds * CLOCK_NS_PER_S;
	uint64_t room = p->memory_size / 2 / (2 * WINDOW_MAX), seed = p->listens ? 1 : 2;
	uint64_t sent = 0;

	while (clock_monotonic() < end) {
		struct slot *s = free_slot(p);
		uint8_t *data = p->memory + (uint64_t)(s - run->out) * room;
		uint64_t size;

		seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		size = (seed >> 33) % (room >> ((seed >> 20) % 12));
		for (uint64_t i = 0; i < size; i++) {
			data[i] = pattern(run->sent, i);
		}
		sent += size;
		post(p, s, data, size, TAG_DATA);
	}
	post(p, free_slot(p), p->memory, 0, TAG_LAST);
	while (!run->last || any_busy(run)) {
		pair_turn(p);
		must_be_up(p);
	}
	pair_barrier(p);
	for (uint64_t until = clock_monotonic() + CLOCK_NS_PER_S; clock_monotonic() < until;) {
		pair_turn(p);
	}
	printf("mode=check messages=%u bytes=%" PRIu64 " bad=%" PRIu64 " rails_lost=%u\n",
	       run->sent, sent, run->bad, p->downs);
	if (run->bad) {
		pair_die("%" PRIu64 " bytes were wrong", run->bad);
	}
}

/* Options with a number. */
static const struct {
	const char *name;
	size_t offset; /* in struct pair_plan */
} numbers[] = {
	{"--rails", offsetof(struct pair_plan, rails)},
	{"--count", offsetof(struct pair_plan, count)},
	{"--window", offsetof(struct pair_plan, window)},
	{"--seconds", offsetof(struct pair_plan, seconds)},
	{"--qps", offsetof(struct pair_plan, options.bulk_qps)},
	{"--fragment", offsetof(struct pair_plan, options.fragment)},
	{"--direct", offsetof(struct pair_plan, options.direct)},
	{"--depth", offsetof(struct pair_plan, options.bulk_depth)},
};

static bool parse_number(struct pair_plan *plan, const char *name, const char *value)
{
	if (value && strcmp(name, "--size") == 0) {
		plan->size = strtoull(value, NULL, 0);
		return true;
	}
	if (value && strcmp(name, "--traffic-class") == 0) {
		plan->options.traffic_class = (uint8_t)atoi(value);
		return true;
	}
	for (size_t i = 0; value && i < ARRAY_SIZE(numbers); i++) {
		if (strcmp(numbers[i].name, name) == 0) {
			*(uint32_t *)((char *)plan + numbers[i].offset) =
				(uint32_t)strtoul(value, NULL, 0);
			return true;
		}
	}
	return false;
}

static void parse(struct pair *p, char **argv, const char **address, const char **port)
{
	struct pair_plan *plan = &p->plan;

	while (*++argv) {
		const char *value = argv[1];

		if (strcmp(*argv, "--listen") == 0) {
			*address = NULL;
		} else if (strcmp(*argv, "--land") == 0) {
			plan->land = 1;
		} else if (strcmp(*argv, "--plain") == 0) {
			plan->plain = 1;
		} else if (strcmp(*argv, "--connect") == 0 && value) {
			*address = *++argv;
		} else if (strcmp(*argv, "--mode") == 0 && value) {
			snprintf(plan->mode, sizeof(plan->mode), "%s", *++argv);
		} else if (parse_number(plan, *argv, value)) {
			argv++;
		} else if (**argv != '-') {
			*port = *argv;
		} else {
			pair_die("%s? The options are in the head of main.c", *argv);
		}
	}
	plan->window = MIN(MAX(plan->window, 1), WINDOW_MAX);
}

int main(int argc, char **argv)
{
	struct pair p = {
		.plan = {.mode = "lat",
			 .rails = 1,
			 .size = 8,
			 .count = 1000,
			 .window = 4,
			 .seconds = 5},
	};
	const char *address = NULL, *port = PORT;
	struct run *run = calloc(1, sizeof(*run));

	parse(&p, argv, &address, &port);
	pair_meet(&p, address, port);
	p.memory_size = MAX((size_t)64 << 20, 2 * ALIGN_UP(p.plan.size, (size_t)4096));
	p.run = run;
	pair_open(&p, &handler);
	if (p.plan.mode[0] == 'l') {
		run_latency(&p);
	} else if (p.plan.mode[0] == 'b') {
		run_bandwidth(&p);
	} else {
		run_check(&p);
	}
	fflush(stdout);
	/* What the last message needs of us still goes out. */
	for (int i = 0; i < 20; i++) {
		verbs_poll(p.v);
	}
	pair_barrier(&p);
	pair_close(&p);
	free(run);
	return 0;
}
