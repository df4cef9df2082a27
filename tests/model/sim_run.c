/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * A run of the simulator: plans of all hosts, then events, then the verdict
 *
 * Thread: any, one user at a time      Owns: everything within a run      Locks: none
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "sim_impl.h"

static bool plan_host(struct sim *s, uint32_t host, uint32_t want, uint64_t *seg)
{
	const struct sim_config *c = &s->data->config;
	struct host *h = &s->hosts[host];
	const char *why = NULL;
	uint64_t bytes, longest;
	int r = coll_plan(c->kind, c->algo, c->root, want, s->layout, host, &h->plan);

	if (r) {
		sim_fail(s, "host %u: no plan: %s", host, strerror(-r));
		return false;
	}
	r = plan_check(h->plan, s->layout, host, &why);
	if (r) {
		sim_fail(s, "host %u: plan_check: %s", host, why ? why : strerror(-r));
		return false;
	}
	bytes = coll_segment(h->plan, c->chunk, c->max_temp);
	if (host > 0 && bytes != *seg) {
		sim_fail(s, "host %u: segment of %" PRIu64 " bytes, not %" PRIu64, host, bytes,
			 *seg);
		return false;
	}
	*seg = bytes;
	/* No block is longer than the count, and scratch is as long as a segment. */
	s->seg = MIN(bytes / s->data->esize, MAX(c->count, 1));
	longest = sim_longest(s->data, host);
	h->nseg = MAX(DIV_UP(longest, s->seg), 1);
	h->segs = sim_need(calloc(h->nseg, sizeof(*h->segs)));
	why = h->plan->nsteps <= 64 && h->plan->nrefs <= 400
		      ? sim_check_races(s->data, h->plan, host, s->seg)
		      : NULL;
	if (why) {
		sim_fail(s, "host %u: race: %s", host, why);
	}
	return !why;
}

/* Hosts where nobody works in place may say so; half of them do. */
static uint32_t host_wants(struct sim *s, uint32_t host)
{
	uint32_t want = s->data->config.premul ? PLAN_PRESCALE : 0;

	for (uint32_t i = s->layout->host_first[host]; i < s->layout->host_first[host + 1]; i++) {
		if (s->data->ranks[s->layout->by_host[i]].in_place) {
			return want;
		}
	}
	return want | (sim_random(s) % 2 ? PLAN_DISTINCT : 0);
}

static void free_host(struct host *h)
{
	for (uint64_t i = 0; h->segs && i < h->nseg; i++) {
		for (uint32_t k = 0; h->segs[i].arrived && k < h->plan->nsteps; k++) {
			if (h->segs[i].arrived[k]) {
				free(h->segs[i].arrived[k]->data);
				free(h->segs[i].arrived[k]);
			}
		}
		free(h->segs[i].pending);
		free(h->segs[i].state);
		free(h->segs[i].fragments);
		free(h->segs[i].arrived);
		free(h->segs[i].temp);
	}
	free(h->segs);
	for (size_t i = 0; i < h->nparked; i++) {
		free(h->parked[i]->data);
		free(h->parked[i]);
	}
	free(h->parked);
	free(h->pred_first);
	free(h->pred);
	plan_free(h->plan);
}

static void report(struct sim *s, struct sim_result *ret)
{
	const struct sim_data *d = s->data;

	*ret = (struct sim_result){.least_sent = UINT64_MAX, .messages = s->messages};
	ret->segments = s->hosts[0].nseg;
	ret->seg = s->seg;
	for (uint32_t h = 0; h < s->layout->nhosts; h++) {
		ret->wire_bytes += s->hosts[h].sent;
		ret->most_sent = MAX(ret->most_sent, s->hosts[h].sent);
		ret->least_sent = MIN(ret->least_sent, s->hosts[h].sent);
	}
	for (uint32_t r = 0; r < d->n; r++) {
		uint32_t host = s->layout->host_of[r];
		uint32_t folds =
			s->layout->nhosts - (1u << (31 - __builtin_clz(s->layout->nhosts)));

		ret->elems_total += d->counts[r];
		ret->elems_remote += host != s->layout->host_of[d->config.root] ? d->counts[r] : 0;
		ret->elems_folded += host < 2 * folds && host % 2 ? d->counts[r] : 0;
		for (uint32_t k = 0; d->is_alltoall && k < d->n; k++) {
			ret->elems_crossing +=
				host != s->layout->host_of[k] ? sim_count(d, r, k) : 0;
		}
	}
}

static void run(struct sim *s, struct sim_result *ret)
{
	uint64_t digest;
	uint64_t seg = 0;
	const char *why;

	for (uint32_t h = 0; h < s->layout->nhosts; h++) {
		if (!plan_host(s, h, host_wants(s, h), &seg)) {
			return;
		}
	}
	for (uint32_t h = 0; h < s->layout->nhosts; h++) {
		sim_start_segments(s, h);
	}
	sim_events(s);
	for (uint32_t h = 0; h < s->layout->nhosts; h++) {
		if (s->hosts[h].in_flight || s->hosts[h].nparked) {
			sim_fail(s, "host %u does not end: deadlock", h);
		}
	}
	if (s->failed) {
		return;
	}
	why = sim_data_verify(s->data, &digest);
	if (why) {
		sim_fail(s, "%s", why);
		return;
	}
	report(s, ret);
	ret->digest = digest;
}

int sim_run(const struct sim_config *config, uint64_t order_seed, struct sim_result *ret, char *why,
	    size_t why_size)
{
	struct sim s = {
		.data = sim_need(sim_data_new(config)),
		.layout = config->layout,
		.random = order_seed * 2 + 1,
		.order = order_seed % ORDER_COUNT_,
		.why = why,
		.why_size = why_size,
	};

	s.hosts = sim_need(calloc(config->layout->nhosts, sizeof(*s.hosts)));
	run(&s, ret);
	/* Actions left behind by a failure: a message is in at most one DELIVER. */
	for (size_t i = 0; i < s.npool; i++) {
		if (s.pool[i].kind == DELIVER) {
			free(s.pool[i].msg->data);
			free(s.pool[i].msg);
		}
	}
	free(s.pool);
	for (uint32_t h = 0; h < config->layout->nhosts; h++) {
		free_host(&s.hosts[h]);
	}
	free(s.hosts);
	sim_data_free(s.data);
	return s.failed ? -1 : 0;
}
