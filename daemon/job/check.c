/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Check: implementation
 *
 * Thread: control      Owns: see check.h      Locks: none
 */
#include "job/check.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job/hostlink.h"
#include "job/jobs.h"
#include "proto/base.h"
#include "util/clock.h"

#define LATENCY_NS (500 * CLOCK_NS_PER_MS)
#define LATENCY_BYTES 8
#define LOOK_MS 200 /* between two looks at the trials */
#define BLACK_HOLE                                                                              \
	"messages of 8 bytes were answered, those of 1 MiB were not: are packets of the full "  \
	"MTU lost on the way? Set the MTU of the interfaces to what every switch passes (ping " \
	"-M do -s SIZE finds it)"
#define GIVE_UP_MS 4000 /* without an answer: who asks is a person, who waits */

enum check_state {
	CHECK_CONNECTING,
	CHECK_TRIALS,
	CHECK_LATENCY,
	CHECK_BANDWIDTH,
	CHECK_REPORT,
	CHECK_OVER, /* it was answered */
};

struct check {
	struct list link; /* jobs.checks */
	struct jobs *jobs;
	struct hostlink *l; /* NULL: lost */
	enum check_state state;
	uint64_t begin, deadline, next_look; /* ms */
	uint32_t test_ms;
	char host_id[2 * PEER_HOST_ID + 1];
	bool looking;	/* rails_paths() has it */
	bool measuring; /* the engine has .gauge */
	struct engine_gauge gauge;
	struct check_result result;
	check_fn done;
	void *arg;
};

/* ---- who is meant ------------------------------------------------------------------------- */

static void host_id_text(const struct peer *peer, char text[2 * PEER_HOST_ID + 1])
{
	for (size_t i = 0; i < PEER_HOST_ID; i++) {
		snprintf(text + 2 * i, 3, "%02x", peer_host_id(peer)[i]);
	}
}

/* "10.1.0.2:4870 via eth0" begins with "10.1.0.2"; an IPv6 address is in brackets there. */
static bool has_address(const struct peer *peer, const char *text)
{
	const char *address = peer_address(peer);
	size_t n = strlen(text);

	address += address[0] == '[';
	return n > 0 && strncmp(address, text, n) == 0 &&
	       (address[n] == ':' || address[n] == ']' || address[n] == ' ');
}

static struct hostlink *find_link(struct jobs *jobs, const char *text)
{
	char id[2 * PEER_HOST_ID + 1];

	list_for_each (at, &jobs->links) {
		struct hostlink *l = container_of(at, struct hostlink, link);

		if (!hostlink_is_up(l) || l->visit) {
			continue;
		}
		host_id_text(l->peer, id);
		if (strcmp(peer_name(l->peer), text) == 0 || strcmp(id, text) == 0 ||
		    has_address(l->peer, text)) {
			return l;
		}
	}
	return NULL;
}

/* "10.1.0.2", "10.1.0.2:4870", "fd00::2", "[fd00::2]:4870". Return: is it one of these? */
static bool parse_address(const char *text, char *ret_address, size_t size, uint32_t *ret_port)
{
	unsigned char raw[16];
	const char *end = text + strlen(text), *colon = strrchr(text, ':');
	char *rest;
	unsigned long port;

	if (text[0] == '[' || (colon && strchr(text, ':') == colon)) {
		if (colon && (text[0] != '[' || colon[-1] == ']')) {
			port = strtoul(colon + 1, &rest, 10);
			if (rest == colon + 1 || *rest != '\0' || port == 0 || port > UINT16_MAX) {
				return false;
			}
			*ret_port = (uint32_t)port;
			end = colon;
		}
		if (text[0] == '[') {
			if (end[-1] != ']') {
				return false;
			}
			text++;
			end--;
		}
	}
	if ((size_t)(end - text) >= size) {
		return false;
	}
	snprintf(ret_address, size, "%.*s", (int)(end - text), text);
	return inet_pton(AF_INET, ret_address, raw) == 1 ||
	       inet_pton(AF_INET6, ret_address, raw) == 1;
}

static int check_connect(struct check *c, const char *text)
{
	Rocecomm__Peer__Host host = ROCECOMM__PEER__HOST__INIT;
	struct peer_host self = {.naddresses = 1};
	char address[INET6_ADDRSTRLEN];
	char *addresses[1] = {address};

	host.port = c->jobs->self.port;
	if (!parse_address(text, address, sizeof(address), &host.port)) {
		return CHECK_E_UNKNOWN;
	}
	host.addresses = addresses;
	host.n_addresses = 1;
	self.addresses = (const char *const *)addresses;
	self.port = (uint16_t)host.port;
	if (peers_is_self(c->jobs->peers, &self)) {
		return CHECK_E_SELF;
	}
	jobs_telling(c->jobs);
	return err_trace(hostlink_connect(c->jobs, &host, false, &c->l));
}

/* ---- answering ---------------------------------------------------------------------------- */

static void check_free_unused(struct check *c)
{
	if (c->state == CHECK_OVER && !c->looking && !c->measuring) {
		list_remove(&c->link);
		free(c);
	}
}

/* Calls back; @c may be gone afterwards. */
static void check_answer(struct check *c, const struct rails_path *paths, size_t n)
{
	c->state = CHECK_OVER;
	c->result.paths = paths;
	c->result.npaths = n;
	c->done(c->arg, &c->result);
	check_free_unused(c);
}

static void check_fail(struct check *c, const char *reason)
{
	snprintf(c->result.error, sizeof(c->result.error), "%s", reason);
	c->l = NULL;
	check_answer(c, NULL, 0);
}

/* ---- measuring ---------------------------------------------------------------------------- */

static int compare_times(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void take_speed(struct engine_gauge *g, struct check_speed *ret)
{
	*ret = (struct check_speed){.bytes = g->message, .messages = g->messages};
	if (g->result < 0 || g->ntimes == 0 || g->elapsed == 0) {
		snprintf(ret->reason, sizeof(ret->reason), "%s",
			 g->result == -EBUSY	   ? "another check of this host is under way"
			 : g->result == -ETIMEDOUT ? "no message was answered in time"
			 : g->result < 0	   ? "the data connections are lost"
						   : "too few messages were answered");
		return;
	}
	qsort(g->times, g->ntimes, sizeof(*g->times), compare_times);
	ret->measured = true;
	ret->elapsed = g->elapsed;
	ret->min = g->times[0];
	ret->mid = g->times[g->ntimes / 2];
	ret->p99 = g->times[(uint64_t)g->ntimes * 99 / 100];
}

/* Short messages pass and none of a long one's packets do: what only their size explains. */
static void suspect_mtu(struct check *c)
{
	struct check_speed *b = &c->result.bandwidth;

	if (c->gauge.result == -ETIMEDOUT && c->gauge.messages == 0) {
		snprintf(b->reason, sizeof(b->reason), "%s", BLACK_HOLE);
	}
}

static void check_measured(void *arg);

static void check_measure(struct check *c, uint32_t message, uint32_t window, uint64_t ns)
{
	c->gauge = (struct engine_gauge){
		.message = message,
		.window = window,
		.ns = ns,
		.give_up = MIN(c->jobs->config->transfer_timeout_ms, GIVE_UP_MS) * CLOCK_NS_PER_MS,
	};
	c->measuring = true;
	engine_gauge(c->jobs->engine, c->l->engine, &c->gauge, check_measured, c);
}

static void check_measured(void *arg)
{
	struct check *c = arg;

	c->measuring = false;
	if (c->state == CHECK_OVER) {
		check_free_unused(c);
	} else if (c->state == CHECK_LATENCY) {
		take_speed(&c->gauge, &c->result.latency);
		c->state = CHECK_BANDWIDTH;
		if (c->l && c->result.latency.measured) {
			check_measure(c, CHECK_MESSAGE, CHECK_WINDOW, c->test_ms * CLOCK_NS_PER_MS);
		} else {
			c->result.bandwidth = c->result.latency;
			c->state = CHECK_REPORT;
		}
	} else {
		take_speed(&c->gauge, &c->result.bandwidth);
		suspect_mtu(c);
		c->state = CHECK_REPORT;
	}
}

/* ---- trials ------------------------------------------------------------------------------- */

static bool settled(const struct rails_path *paths, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (!paths[i].tcp && paths[i].rail >= 0 && paths[i].live.state != VERBS_RAIL_UP &&
		    paths[i].live.state != VERBS_RAIL_DOWN &&
		    paths[i].live.state != VERBS_RAIL_NONE) {
			return false;
		}
	}
	return true;
}

/* Would a message go out at all? One that waits for a rail cannot be taken back. */
static bool check_can_send(const struct check *c, const struct rails_path *paths, size_t n)
{
	if (rails_tcp_allowed(c->jobs->rails)) {
		return true;
	}
	for (size_t i = 0; i < n; i++) {
		if (!paths[i].tcp && paths[i].rail >= 0 && paths[i].live.state == VERBS_RAIL_UP) {
			return true;
		}
	}
	return false;
}

static void check_begin(struct check *c, const struct rails_path *paths, size_t n)
{
	if (check_can_send(c, paths, n)) {
		c->state = CHECK_LATENCY;
		check_measure(c, LATENCY_BYTES, 1, LATENCY_NS);
		return;
	}
	snprintf(c->result.latency.reason, sizeof(c->result.latency.reason),
		 "no rail is in use, and the configuration allows nothing else");
	c->result.bandwidth = c->result.latency;
	c->state = CHECK_REPORT;
}

static void check_looked(void *arg, const struct rails_path *paths, size_t n)
{
	struct check *c = arg;

	c->looking = false;
	if (c->state == CHECK_OVER) {
		check_free_unused(c);
	} else if (c->state == CHECK_REPORT) {
		check_answer(c, paths, n);
	} else if (c->state == CHECK_TRIALS && c->l &&
		   (settled(paths, n) || jobs_now(c->jobs) >= c->deadline)) {
		check_begin(c, paths, n);
	}
}

static void check_look(struct check *c, uint64_t now)
{
	c->next_look = now + LOOK_MS;
	if (!c->jobs->rails) {
		check_looked(c, NULL, 0);
		return;
	}
	c->looking = true;
	if (rails_paths(c->jobs->rails, c->host_id, check_looked, c) < 0) {
		c->looking = false;
	}
}

static void check_linked(struct check *c, uint64_t now)
{
	struct check_result *r = &c->result;

	r->linked = true;
	r->connect_ms = now - c->begin;
	snprintf(r->peer, sizeof(r->peer), "%s", peer_name(c->l->peer));
	snprintf(r->address, sizeof(r->address), "%s", peer_address(c->l->peer));
	host_id_text(c->l->peer, c->host_id);
	c->state = CHECK_TRIALS;
	/* A new link first hears of the peer's devices. */
	c->next_look = now + LOOK_MS;
	c->deadline = now + c->jobs->config->probe_timeout_ms + RAILS_WAIT_MS;
}

/* One step of one check. It may be gone afterwards. */
static void check_step(struct check *c, uint64_t now)
{
	if (c->state == CHECK_CONNECTING && hostlink_is_up(c->l)) {
		check_linked(c, now);
	} else if ((c->state == CHECK_TRIALS || c->state == CHECK_REPORT) && !c->looking &&
		   (now >= c->next_look || c->state == CHECK_REPORT)) {
		check_look(c, now);
	}
}

/* ---- from outside ------------------------------------------------------------------------- */

/* See check.h. */
int check_start(struct jobs *jobs, const char *peer, uint32_t test_ms, check_fn done, void *arg)
{
	struct check *c;
	unsigned int n = 0;
	int r = 0;

	list_for_each (at, &jobs->checks) {
		n++;
	}
	if (n >= CHECKS_MAX) {
		return CHECK_E_BUSY;
	}
	c = calloc(1, sizeof(*c));
	if (!c) {
		return err_origin(-ENOMEM);
	}
	c->jobs = jobs;
	c->begin = jobs_now(jobs);
	c->test_ms = MIN(test_ms ? test_ms : CHECK_TEST_MS, CHECK_TEST_MS_MAX);
	c->done = done;
	c->arg = arg;
	snprintf(c->result.peer, sizeof(c->result.peer), "%s", peer);
	list_append(&jobs->checks, &c->link);
	c->l = find_link(jobs, peer);
	if (!c->l) {
		r = check_connect(c, peer);
	}
	if (r != 0) {
		list_remove(&c->link);
		free(c);
		return r;
	}
	jobs_tick(jobs);
	return 0;
}

/* See check.h. */
void checks_tick(struct jobs *jobs, uint64_t now)
{
	list_for_each_safe (at, &jobs->checks) {
		check_step(container_of(at, struct check, link), now);
	}
	if (!list_empty(&jobs->checks)) {
		jobs_tick(jobs);
	}
}

/* See check.h. */
void checks_link_down(struct jobs *jobs, struct hostlink *l, const char *reason)
{
	char text[LIMIT_ERROR_TEXT];

	list_for_each_safe (at, &jobs->checks) {
		struct check *c = container_of(at, struct check, link);

		if (c->l != l || c->state == CHECK_OVER) {
			continue;
		}
		if (c->result.latency.measured && !c->result.bandwidth.measured) {
			/* What waits for acknowledgements that never come ends with the link. */
			snprintf(text, sizeof(text), "%.700s; %s", reason, BLACK_HOLE);
			reason = text;
		}
		check_fail(c, reason);
	}
}

/* See check.h. */
void checks_link_merged(struct jobs *jobs, struct hostlink *from, struct hostlink *into)
{
	list_for_each_safe (at, &jobs->checks) {
		struct check *c = container_of(at, struct check, link);

		if (c->l == from) {
			c->l = into;
		}
	}
}

/* See check.h. */
void checks_shutdown(struct jobs *jobs, const char *reason)
{
	list_for_each_safe (at, &jobs->checks) {
		struct check *c = container_of(at, struct check, link);

		if (c->state != CHECK_OVER) {
			check_fail(c, reason);
		}
	}
}
