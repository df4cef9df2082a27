/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Links and paths as JSON: implementation
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#include "control/links_json.h"

#include <stdatomic.h>
#include <string.h>

#include "control/json.h"
#include "proto/base.h"
#include "topo/link_facts.h"

#define NOT_LOOKED_AT "transport = tcp: nobody looks for RDMA devices"
#define NONE_USABLE "no port of any device is usable; see rocectl links"

static void put_known(struct json *j, const char *key, uint64_t value)
{
	if (value > 0) {
		json_uint(j, key, value);
	} else {
		json_null(j, key);
	}
}

void links_json_head(struct json *j, const char *host, const struct config *config)
{
	static const char *const transports[] = {
		[CONFIG_TRANSPORT_AUTO] = "auto",
		[CONFIG_TRANSPORT_RDMA] = "rdma",
		[CONFIG_TRANSPORT_TCP] = "tcp",
	};

	json_string(j, "host", host);
	json_string(j, "transport", transports[config->transport]);
	json_text(j, "require", config->require == CONFIG_REQUIRE_RDMA ? "rdma" : NULL);
}

/* ---- links -------------------------------------------------------------------------------- */

static void put_gid(struct json *j, const struct rdma_device *d, const struct rdma_gid *g)
{
	json_open(j, NULL);
	json_uint(j, "index", g->index);
	json_string(j, "gid", g->text);
	json_string(j, "type", g->v2 ? "v2" : "other");
	json_text(j, "interface", g->interface);
	put_known(j, "interface_mtu", link_interface_mtu(d, g->interface));
	put_known(j, "vlan", g->vlan);
	json_bool(j, "usable", !g->reason);
	json_text(j, "reason", g->reason);
	json_close(j);
}

static void put_counters(struct json *j, const struct rdma_port *port)
{
	uint64_t sums[LINK_KIND_COUNT_] = {0};
	bool known[LINK_KIND_COUNT_] = {false};

	json_open(j, "counters");
	for (size_t i = 0; i < link_counter_nrows; i++) {
		const struct link_counter_row *row = &link_counter_rows[i];
		uint64_t value;

		if (link_counter_read(port, row, &value) == 0) {
			json_uint(j, row->name, value);
			sums[row->kind] += value;
			known[row->kind] = true;
		}
	}
	json_close(j);
	json_open(j, "network");
	for (size_t i = 0; i < LINK_KIND_COUNT_; i++) {
		if (known[i]) {
			json_uint(j, link_counter_kind_name(i), sums[i]);
		} else {
			json_null(j, link_counter_kind_name(i));
		}
	}
	json_close(j);
}

static void put_port(struct json *j, const struct rdma_port *port)
{
	struct link_port facts;

	link_port_read(port, &facts);
	json_open(j, NULL);
	json_uint(j, "number", port->number);
	json_bool(j, "usable", port->usable);
	json_text(j, "reason", port->usable ? NULL : port->reason);
	json_text(j, "state", facts.state);
	json_text(j, "physical", facts.physical);
	json_text(j, "layer", facts.layer);
	json_text(j, "rate", facts.rate);
	put_known(j, "mbps", port->mbps);
	put_known(j, "mtu", port->mtu);
	json_open_array(j, "gids");
	for (uint32_t i = 0; i < port->ngids; i++) {
		put_gid(j, port->device, &port->gids[i]);
	}
	json_close_array(j);
	put_counters(j, port);
	json_close(j);
}

static bool device_used(const struct rdma_device *d)
{
	bool used = false;

	for (uint32_t i = 0; i < d->nports; i++) {
		used = used || d->ports[i].usable;
	}
	return used && !d->gone;
}

/* Memory that the device has, and has not taken. */
static void put_memory(struct json *j, const struct rdma_device *d)
{
	static const char *const causes[RDMA_REFUSAL_COUNT_] = {
		[RDMA_REFUSED_MEMLOCK] = "memlock", [RDMA_REFUSED_FULL] = "full",
		[RDMA_REFUSED_KIND] = "kind",	    [RDMA_REFUSED_OTHER] = "other",
		[RDMA_REFUSED_BOUND] = "bound",	    [RDMA_REFUSED_QUOTA] = "quota",
	};

	json_open(j, "memory");
	json_uint(j, "regions", atomic_load_explicit(&d->regions, memory_order_relaxed));
	json_uint(j, "bytes", atomic_load_explicit(&d->region_bytes, memory_order_relaxed));
	put_known(j, "regions_max", (uint64_t)MAX(d->attr.max_mr, 0));
	json_open(j, "refused");
	for (size_t i = 0; i < RDMA_REFUSAL_COUNT_; i++) {
		json_uint(j, causes[i], atomic_load_explicit(&d->refused[i], memory_order_relaxed));
	}
	json_close(j);
	json_close(j);
	json_open(j, "registrations");
	json_uint(j, "made", atomic_load_explicit(&d->registrations, memory_order_relaxed));
	json_uint(j, "evicted", atomic_load_explicit(&d->evictions, memory_order_relaxed));
	json_close(j);
}

/* Memory of clients that finds no room. */
static void put_room(struct json *j, const struct rdma_memory *m)
{
	json_open(j, "memory");
	json_uint(j, "evictions", m->evictions);
	json_uint(j, "returns", m->returns);
	json_uint(j, "fallbacks", m->fallbacks);
	json_uint(j, "staged", m->staged);
	json_uint(j, "staged_bytes", m->staged_bytes);
	json_text(j, "reason", m->reason);
	json_close(j);
}

static void put_device(struct json *j, const struct rdma_device *d)
{
	struct link_device facts;

	link_device_read(d, &facts);
	json_open(j, NULL);
	json_string(j, "name", d->name);
	json_bool(j, "used", device_used(d));
	json_text(j, "reason", d->reason);
	json_bool(j, "removed", d->gone);
	json_bool(j, "software", d->software);
	json_text(j, "driver", facts.driver);
	json_text(j, "firmware", facts.firmware);
	json_text(j, "pci", d->pci);
	json_text(j, "pci_path", facts.pci_path);
	if (d->numa >= 0) {
		json_uint(j, "numa", (uint64_t)d->numa);
	} else {
		json_null(j, "numa");
	}
	put_memory(j, d);
	json_open_array(j, "ports");
	for (uint32_t i = 0; i < d->nports; i++) {
		put_port(j, &d->ports[i]);
	}
	json_close_array(j);
	json_close(j);
}

/* See links_json.h. */
int links_json(const char *host, const struct config *config, const struct rdma *devices,
	       char **ret)
{
	struct json j;
	int r;

	json_init(&j);
	json_open(&j, NULL);
	links_json_head(&j, host, config);
	json_text(&j, "reason",
		  !devices		? NOT_LOOKED_AT
		  : devices->count == 0 ? devices->reason
					: NULL);
	json_open_array(&j, "devices");
	for (uint32_t i = 0; devices && i < devices->count; i++) {
		put_device(&j, devices->devices[i]);
	}
	json_close_array(&j);
	if (devices) {
		put_room(&j, &devices->memory);
	}
	json_close(&j);
	r = json_finish(&j, ret);
	json_deinit(&j);
	return r;
}

/* ---- paths -------------------------------------------------------------------------------- */

static const char *rail_state_text(enum verbs_rail_state state)
{
	static const char *const texts[VERBS_RAIL_STATE_COUNT_] = {
		[VERBS_RAIL_NONE] = "none",	    [VERBS_RAIL_INIT] = "connecting",
		[VERBS_RAIL_PROBING] = "probing",   [VERBS_RAIL_UP] = "up",
		[VERBS_RAIL_DRAINING] = "draining", [VERBS_RAIL_DOWN] = "down",
		[VERBS_RAIL_OPENING] = "opening",
	};

	return (size_t)state < ARRAY_SIZE(texts) ? texts[state] : "unknown";
}

static void put_rail(struct json *j, const struct rails_path *p)
{
	if (p->rail >= 0) {
		json_uint(j, "rail", (uint64_t)p->rail);
	} else {
		json_null(j, "rail");
	}
	json_text(j, "device", p->device);
	put_known(j, "port", p->port);
	json_text(j, "interface", p->interface);
	json_text(j, "gid", p->gid);
	json_uint(j, "gid_index", p->live.gid_index);
	put_known(j, "mbps", p->mbps);
	json_text(j, "remote_device", p->remote_device);
	put_known(j, "remote_port", p->remote_port);
	json_text(j, "remote_gid", p->remote_gid);
	put_known(j, "mtu", p->live.mtu);
	put_known(j, "local_mtu", p->live.local_mtu);
	put_known(j, "remote_mtu", p->live.remote_mtu);
	json_uint(j, "traffic_class", p->live.traffic_class);
	json_uint(j, "remote_traffic_class", p->live.remote_traffic_class);
	json_uint(j, "qps", p->live.nqps);
	json_open_array(j, "udp_ports");
	for (uint32_t i = 0; i < MIN(p->live.nqps, VERBS_QPS_MAX); i++) {
		json_uint(j, NULL, p->live.udp_ports[i]);
	}
	json_close_array(j);
	json_uint(j, "work_requests", p->live.work_requests);
	json_uint(j, "completions", p->live.completions);
	put_known(j, "bytes_per_second", p->live.bytes_per_second);
	json_uint(j, "failures", p->live.failures);
	json_text(j, "error", p->live.reason);
}

void links_json_path(struct json *j, const struct rails_path *p)
{
	json_open(j, NULL);
	json_string(j, "kind", p->tcp ? "tcp" : "rdma");
	json_bool(j, "chosen", p->chosen);
	json_string(j, "reason", p->reason);
	if (p->tcp) {
		json_string(j, "state", "up");
		json_text(j, "address", p->address);
	} else {
		json_string(j, "state", rail_state_text(p->live.state));
		put_rail(j, p);
	}
	json_uint(j, "bytes_sent", p->live.bytes_sent);
	json_uint(j, "bytes_received", p->live.bytes_received);
	json_close(j);
}

/* Paths of the peer of the first one. @ret_transport: NULL: nothing is in use. Return: how many. */
static size_t peer_paths(const struct rails_path *paths, size_t n, const char **ret_transport)
{
	size_t i = 0;

	*ret_transport = NULL;
	while (i < n && memcmp(paths[i].host_id, paths[0].host_id, PEER_HOST_ID) == 0) {
		if (paths[i].chosen) {
			*ret_transport = paths[i].tcp ? "tcp" : "rdma";
		}
		i++;
	}
	return i;
}

static void put_peers(struct json *j, const struct rails_path *paths, size_t n)
{
	json_open_array(j, "peers");
	while (n > 0) {
		const char *transport;
		size_t count = peer_paths(paths, n, &transport);

		json_open(j, NULL);
		json_string(j, "host", paths[0].peer);
		json_hex(j, "host_id", paths[0].host_id, PEER_HOST_ID);
		json_text(j, "transport", transport);
		json_open_array(j, "paths");
		for (size_t i = 0; i < count; i++) {
			links_json_path(j, &paths[i]);
		}
		json_close_array(j);
		json_close(j);
		paths += count;
		n -= count;
	}
	json_close_array(j);
}

const char *links_json_no_device(const struct rdma *devices)
{
	if (!devices) {
		return NOT_LOOKED_AT;
	}
	if (devices->count == 0) {
		return devices->reason;
	}
	for (uint32_t i = 0; i < devices->count; i++) {
		if (device_used(devices->devices[i])) {
			return NULL;
		}
	}
	return NONE_USABLE;
}

/* See links_json.h. */
int paths_json(const char *host, const struct config *config, const struct rdma *devices,
	       const struct rails_path *paths, size_t n, const struct gpu *gpu,
	       const struct gpu_paths *gpu_paths, char **ret)
{
	struct json j;
	int r;

	json_init(&j);
	json_open(&j, NULL);
	links_json_head(&j, host, config);
	json_text(&j, "reason", links_json_no_device(devices));
	gpu_paths_json(&j, gpu_paths, gpu);
	put_peers(&j, paths, n);
	json_close(&j);
	r = json_finish(&j, ret);
	json_deinit(&j);
	return r;
}
