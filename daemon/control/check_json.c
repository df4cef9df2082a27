/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * A check as JSON: what was found, in numbers and in words
 *
 * Thread: control      Owns: nothing      Locks: none      See: links_json.h for the members
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "control/links_json.h"
#include "util/clock.h"

struct findings {
	struct json *j;
	bool ok;
	unsigned int up, down; /* pairs of ports */
};

static void found(struct findings *f, const char *what, bool ok, const char *fmt, ...)
	attr_printf(4, 5);

static void found(struct findings *f, const char *what, bool ok, const char *fmt, ...)
{
	char text[VERBS_REASON + 256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	f->ok = f->ok && ok;
	json_open(f->j, NULL);
	json_string(f->j, "what", what);
	json_bool(f->j, "ok", ok);
	json_string(f->j, "text", text);
	json_close(f->j);
}

static void find_tcp(struct findings *f, const struct check_result *r)
{
	if (!r->linked) {
		found(f, "tcp", false, "no link: %s", r->error);
	} else if (r->error[0]) {
		found(f, "tcp", false, "the link was lost: %s", r->error);
	} else if (r->connect_ms > 0) {
		found(f, "tcp", true, "%s answers; linked in %" PRIu64 " ms", r->address,
		      r->connect_ms);
	} else {
		found(f, "tcp", true, "%s is linked", r->address);
	}
}

/* What was agreed on by a pair of ports that works. */
static void find_agreed(struct findings *f, const struct rails_path *p)
{
	if (p->live.local_mtu != p->live.remote_mtu) {
		found(f, "mtu", false,
		      "rail %d: %" PRIu32 " bytes here, %" PRIu32 " there: %" PRIu32
		      " is used; set the same MTU on both interfaces",
		      p->rail, p->live.local_mtu, p->live.remote_mtu, p->live.mtu);
	} else {
		found(f, "mtu", true,
		      "rail %d: %" PRIu32 " bytes on both ends, and such packets pass", p->rail,
		      p->live.mtu);
	}
	if (p->live.traffic_class != p->live.remote_traffic_class) {
		found(f, "dscp", false,
		      "rail %d: DSCP %d (traffic class %d) here, %d (%d) there; set traffic_class "
		      "to the same on all hosts",
		      p->rail, p->live.traffic_class >> 2, p->live.traffic_class,
		      p->live.remote_traffic_class >> 2, p->live.remote_traffic_class);
	} else {
		found(f, "dscp", true, "rail %d: DSCP %d (traffic class %d) on both ends", p->rail,
		      p->live.traffic_class >> 2, p->live.traffic_class);
	}
}

static void find_rails(struct findings *f, const struct config *config, const struct rdma *devices,
		       const struct check_result *r)
{
	const char *none = links_json_no_device(devices);
	bool required = config->require == CONFIG_REQUIRE_RDMA ||
			config->transport == CONFIG_TRANSPORT_RDMA;

	if (none) {
		found(f, "rdma", !required, "%s", none);
	}
	for (size_t i = 0; i < r->npaths && !none; i++) {
		const struct rails_path *p = &r->paths[i];

		if (p->tcp) {
			continue;
		}
		if (p->rail < 0) {
			/* A port that has no partner is no fault while another one has. */
			found(f, "rdma", true, "%s: %s", p->device[0] ? p->device : "no device",
			      p->reason);
			continue;
		}
		f->up += p->live.state == VERBS_RAIL_UP;
		f->down += p->live.state != VERBS_RAIL_UP;
		found(f, "rdma", p->live.state == VERBS_RAIL_UP,
		      "rail %d, %s port %d GID %s -> %s port %d GID %s: %s", p->rail, p->device,
		      p->port, p->gid, p->remote_device, p->remote_port, p->remote_gid, p->reason);
		if (p->live.state == VERBS_RAIL_UP) {
			find_agreed(f, p);
		}
	}
	if (!none && r->linked && !r->error[0] && f->up + f->down == 0) {
		found(f, "rdma", !required, "no RDMA port of the two hosts fits together");
	}
}

static const char *way(const struct check_result *r)
{
	for (size_t i = 0; i < r->npaths; i++) {
		if (r->paths[i].chosen && !r->paths[i].tcp) {
			return "RDMA";
		}
	}
	return "TCP";
}

static void find_speed(struct findings *f, const struct check_result *r)
{
	const struct check_speed *l = &r->latency, *b = &r->bandwidth;

	if (!r->linked || r->error[0]) {
		return;
	}
	if (l->measured) {
		found(f, "latency", true,
		      "%" PRIu64
		      " bytes there and back over %s: median %.1f us, 99%% below %.1f us",
		      l->bytes, way(r), (double)l->mid / 1e3, (double)l->p99 / 1e3);
	} else {
		found(f, "latency", false, "not measured: %s", l->reason);
	}
	if (b->measured) {
		found(f, "bandwidth", true, "%.1f MB/s over %s (%" PRIu64 " messages of 1 MiB)",
		      (double)(b->bytes * b->messages) * 1e3 / (double)b->elapsed, way(r),
		      b->messages);
	} else {
		found(f, "bandwidth", false, "not measured: %s", b->reason);
	}
}

static void put_speed(struct json *j, const char *key, const struct check_speed *s, bool rate)
{
	if (!s->measured) {
		json_null(j, key);
		return;
	}
	json_open(j, key);
	json_uint(j, "bytes", s->bytes);
	json_uint(j, "messages", s->messages);
	json_uint(j, "elapsed_us", s->elapsed / CLOCK_NS_PER_US);
	json_uint(j, "min_ns", s->min);
	json_uint(j, "median_ns", s->mid);
	json_uint(j, "p99_ns", s->p99);
	if (rate) {
		json_uint(j, "bytes_per_second",
			  (uint64_t)((double)(s->bytes * s->messages) * 1e9 / (double)s->elapsed));
	}
	json_close(j);
}

static void put_verdict(struct findings *f, const struct check_result *r)
{
	char text[256];

	if (!r->linked || r->error[0]) {
		snprintf(text, sizeof(text), "%s cannot be reached", r->peer);
	} else if (f->down > 0 && f->up == 0) {
		snprintf(text, sizeof(text), "TCP ok, RoCE blocked: no rail to %s works", r->peer);
	} else if (f->down > 0) {
		snprintf(text, sizeof(text), "%u of %u rails to %s do not work", f->down,
			 f->up + f->down, r->peer);
	} else if (!f->ok) {
		snprintf(text, sizeof(text), "%s is reached, with faults", r->peer);
	} else {
		snprintf(text, sizeof(text), "%s is reached over %s, all well", r->peer,
			 f->up > 0 ? "RDMA and TCP" : "TCP");
	}
	json_string(f->j, "verdict", text);
}

static void put_result(struct json *j, const struct check_result *r)
{
	json_string(j, "peer", r->peer);
	json_bool(j, "linked", r->linked);
	json_string(j, "address", r->address);
	json_uint(j, "connect_ms", r->connect_ms);
	json_text(j, "error", r->error);
	put_speed(j, "latency", &r->latency, false);
	put_speed(j, "bandwidth", &r->bandwidth, true);
	json_open_array(j, "paths");
	for (size_t i = 0; i < r->npaths; i++) {
		links_json_path(j, &r->paths[i]);
	}
	json_close_array(j);
}

/* See links_json.h. */
int check_json(const char *host, const struct config *config, const struct rdma *devices,
	       const struct check_result *result, char **ret)
{
	struct json j;
	struct findings f = {.j = &j, .ok = true};
	int r;

	json_init(&j);
	json_open(&j, NULL);
	links_json_head(&j, host, config);
	put_result(&j, result);
	json_open_array(&j, "findings");
	find_tcp(&f, result);
	if (result->linked) {
		find_rails(&f, config, devices, result);
	}
	find_speed(&f, result);
	json_close_array(&j);
	json_bool(&j, "ok", f.ok);
	put_verdict(&f, result);
	json_close(&j);
	r = json_finish(&j, ret);
	json_deinit(&j);
	return r;
}
