/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * RDMA: finding devices and ports, and the verdict on each
 *
 * Thread: control      Owns: see rdma.h      Locks: none
 */
#include "topo/rdma.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "proto/base.h"

#define NETNS_MODE "/sys/module/ib_core/parameters/netns_mode"

static bool matches(const struct value_list *patterns, const char *text)
{
	for (size_t i = 0; text[0] && patterns && i < patterns->count; i++) {
		if (fnmatch(patterns->items[i], text, 0) == 0) {
			return true;
		}
	}
	return false;
}

static bool port_matches(const struct value_list *patterns, const struct rdma_port *port)
{
	if (matches(patterns, port->device->name) || matches(patterns, port->device->pci)) {
		return true;
	}
	for (uint32_t i = 0; i < port->ngids; i++) {
		if (matches(patterns, port->gids[i].interface)) {
			return true;
		}
	}
	return false;
}

static uint32_t mtu_bytes(enum ibv_mtu mtu)
{
	return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128u << mtu : 0;
}

static uint32_t port_mbps(const struct ibv_port_attr *a)
{
	static const struct {
		uint8_t code;
		uint32_t value;
	} speeds[] = {{1, 2500},   {2, 5000},	{4, 10000},  {8, 10000},
		      {16, 14000}, {32, 25000}, {64, 50000}, {128, 100000}},
	  widths[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
	uint32_t speed = 0, width = 0;

	for (size_t i = 0; i < ARRAY_SIZE(speeds); i++) {
		speed = a->active_speed == speeds[i].code ? speeds[i].value : speed;
	}
	for (size_t i = 0; i < ARRAY_SIZE(widths); i++) {
		width = a->active_width == widths[i].code ? widths[i].value : width;
	}
	return speed * width;
}

static void read_gid(struct rdma_port *port, const struct ibv_gid_entry *entry, struct rdma_gid *g)
{
	const struct verbs_api *api = port->device->api;
	struct verbs_netdev netdev;

	g->gid = entry->gid;
	g->index = entry->gid_index;
	g->ifindex = entry->ndev_ifindex;
	g->v2 = entry->gid_type == IBV_GID_TYPE_ROCE_V2;
	g->reason = rdma_gid_judge(entry);
	rdma_gid_text(&entry->gid, g->text);
	if (entry->ndev_ifindex && api->netdev(api->arg, entry->ndev_ifindex, &netdev) == 0) {
		memcpy(g->interface, netdev.name, sizeof(g->interface));
		g->vlan = netdev.vlan;
	}
}

/* @table: entries of the port's. All of them in one call: there may be thousands of empty ones. */
static int read_gids(struct rdma_port *port, int table)
{
	const struct rdma_device *d = port->device;
	size_t max = (size_t)MAX(table, 1) * MAX(d->attr.phys_port_cnt, 1u);
	cleanup_free struct ibv_gid_entry *entries = calloc(max, sizeof(*entries));
	struct rdma_gid *gids;
	uint32_t n = 0;
	ssize_t found;

	if (!entries) {
		return err_origin(-ENOMEM);
	}
	found = d->api->query_gids(d->context, entries, max);
	gids = calloc((size_t)MAX(found, 1), sizeof(*gids));
	if (!gids) {
		return err_origin(-ENOMEM);
	}
	for (ssize_t i = 0; i < found; i++) {
		if (entries[i].port_num == port->number) {
			read_gid(port, &entries[i], &gids[n++]);
		}
	}
	free(port->gids);
	port->gids = gids;
	port->ngids = n;
	return 0;
}

static bool port_refuse(struct rdma_port *port, const char *reason)
{
	snprintf(port->reason, sizeof(port->reason), "%s", reason);
	port->usable = false;
	return false;
}

/* What is wrong with the GIDs, in the words of the first that is of some use. */
static bool judge_gids(struct rdma_port *port)
{
	const struct rdma_gid *best = NULL;

	for (uint32_t i = 0; i < port->ngids; i++) {
		if (!port->gids[i].reason) {
			return true;
		}
		if (!best || (port->gids[i].v2 && !best->v2)) {
			best = &port->gids[i];
		}
	}
	if (best) {
		snprintf(port->reason, sizeof(port->reason),
			 "no usable RoCE v2 GID: %s is %s; give the interface an address",
			 best->text, best->reason);
	} else {
		snprintf(port->reason, sizeof(port->reason), "its GID table is empty");
	}
	port->usable = false;
	return false;
}

static bool judge_port(struct rdma_port *port, const struct ibv_port_attr *a,
		       const struct rdma_options *options)
{
	port->usable = true;
	port->denied = true;
	port->reason[0] = '\0';
	if (port_matches(options->deny, port)) {
		return port_refuse(port, "denied by the configuration");
	}
	if (options->allow && options->allow->count > 0 && !port_matches(options->allow, port)) {
		return port_refuse(port, "not among those that the configuration allows");
	}
	port->denied = false;
	if (a->link_layer != IBV_LINK_LAYER_ETHERNET) {
		return port_refuse(port, "an InfiniBand port: only RoCE is supported");
	}
	if (!judge_gids(port)) {
		return false;
	}
	if (!port->up) {
		return port_refuse(port, "the port is down");
	}
	return true;
}

static int update_port(struct rdma_port *port, const struct rdma_options *options)
{
	const struct verbs_api *api = port->device->api;
	struct ibv_port_attr a = {0};
	int r = api->query_port(port->device->context, port->number, &a);

	if (r) {
		snprintf(port->reason, sizeof(port->reason), "cannot be queried: %s", strerror(r));
		port->usable = false;
		port->up = false;
		return 0;
	}
	port->up = a.state == IBV_PORT_ACTIVE;
	port->mtu = mtu_bytes(a.active_mtu);
	port->mbps = port_mbps(&a);
	r = read_gids(port, a.gid_tbl_len);
	if (r < 0) {
		return err_trace(r);
	}
	judge_port(port, &a, options);
	return 0;
}

int rdma_device_update(struct rdma_device *d, const struct rdma_options *options)
{
	for (uint32_t i = 0; i < d->nports; i++) {
		int r;

		if (d->gone || !d->context) {
			port_refuse(&d->ports[i], d->reason);
			continue;
		}
		r = update_port(&d->ports[i], options);
		if (r < 0) {
			return err_trace(r);
		}
	}
	return 0;
}

struct rdma_port *rdma_device_port(struct rdma_device *d, uint8_t number)
{
	return number >= 1 && number <= d->nports ? &d->ports[number - 1] : NULL;
}

static void read_place(struct rdma_device *d, const struct ibv_device *device)
{
	const struct verbs_api *api = d->api;
	char path[IBV_SYSFS_PATH_MAX + 32], text[256];
	const char *slash;

	d->numa = -1;
	snprintf(path, sizeof(path), "%s/device", device->ibdev_path);
	if (api->read_link(api->arg, path, text, sizeof(text)) < 0) {
		d->software = true;
		return;
	}
	slash = strrchr(text, '/');
	snprintf(d->pci, sizeof(d->pci), "%.31s", slash ? slash + 1 : text);
	snprintf(path, sizeof(path), "%s/device/numa_node", device->ibdev_path);
	if (api->read_file(api->arg, path, text, sizeof(text)) == 0) {
		d->numa = atoi(text);
	}
}

static void device_refuse(struct rdma_device *d, const char *what, int error)
{
	const char *hint = "";

	if (error == EACCES || error == EPERM) {
		hint = "; is its /dev/infiniband/uverbs node open to this process "
		       "(permissions, DeviceAllow=, network namespace)?";
	} else if (error == ENOENT || error == ENODEV || error == ENXIO) {
		hint = "; its /dev/infiniband/uverbs node is missing here";
	}
	snprintf(d->reason, sizeof(d->reason), "%s: %s%s", what, strerror(error), hint);
}

static void open_device(struct rdma_device *d, struct ibv_device *device)
{
	int r;

	if (device->transport_type == IBV_TRANSPORT_IWARP) {
		snprintf(d->reason, sizeof(d->reason), "an iWARP device: only RoCE is supported");
		return;
	}
	if (device->transport_type != IBV_TRANSPORT_IB) {
		snprintf(d->reason, sizeof(d->reason),
			 "its transport has no reliable connected queue pairs");
		return;
	}
	d->context = d->api->open_device(device);
	if (!d->context) {
		device_refuse(d, "cannot be opened", errno ? errno : EIO);
		return;
	}
	r = d->api->query_device(d->context, &d->attr);
	if (r == 0) {
		d->pd = d->api->alloc_pd(d->context);
		r = d->pd ? 0 : errno;
	}
	/* Events are read when there are some. */
	if (r == 0 && d->context->async_fd >= 0 &&
	    fcntl(d->context->async_fd, F_SETFL, O_NONBLOCK) < 0) {
		r = errno;
	}
	if (r) {
		device_refuse(d, "cannot be used", r);
		if (d->pd) {
			d->api->dealloc_pd(d->pd);
			d->pd = NULL;
		}
		d->api->close_device(d->context);
		d->context = NULL;
	}
}

/* One of this name that has gone, and that nothing is in use of any more. */
static struct rdma_device *find_closed(struct rdma *list, const char *name)
{
	for (uint32_t i = 0; i < list->count; i++) {
		struct rdma_device *d = list->devices[i];

		if (d->gone && !d->context && strcmp(d->name, name) == 0) {
			return d;
		}
	}
	return NULL;
}

static struct rdma_device *new_device(struct rdma *list, const char *name)
{
	struct rdma_device *d = list->count < RDMA_DEVICES_MAX ? calloc(1, sizeof(*d)) : NULL;

	if (d) {
		d->api = list->api;
		d->index = list->count;
		snprintf(d->name, sizeof(d->name), "%s", name);
		list->devices[list->count++] = d;
	}
	return d;
}

/* One that came again takes its old place: there are not many, and a NIC may be reset often. */
static int add_device(struct rdma *list, struct ibv_device *device,
		      const struct rdma_options *options)
{
	struct rdma_device *d = find_closed(list, device->name);

	if (!d) {
		d = new_device(list, device->name);
	}
	if (!d) {
		return list->count < RDMA_DEVICES_MAX ? err_origin(-ENOMEM) : 0;
	}
	d->gone = false;
	d->reason[0] = '\0';
	read_place(d, device);
	open_device(d, device);
	d->nports = d->context ? MIN(d->attr.phys_port_cnt, RDMA_PORTS_MAX) : 0;
	for (uint32_t i = 0; i < d->nports; i++) {
		d->ports[i].device = d;
		d->ports[i].number = (uint8_t)(i + 1);
	}
	return err_trace(rdma_device_update(d, options));
}

static struct rdma_device *find_device(struct rdma *list, const char *name)
{
	for (uint32_t i = 0; i < list->count; i++) {
		if (!list->devices[i]->gone && strcmp(list->devices[i]->name, name) == 0) {
			return list->devices[i];
		}
	}
	return NULL;
}

static void mark_gone(struct rdma *list, struct ibv_device **found, int n)
{
	for (uint32_t i = 0; i < list->count; i++) {
		struct rdma_device *d = list->devices[i];
		bool there = false;

		for (int k = 0; k < n; k++) {
			there = there || strcmp(found[k]->name, d->name) == 0;
		}
		if (!there && !d->gone) {
			d->gone = true;
			snprintf(d->reason, sizeof(d->reason), "the device was removed");
		}
	}
}

/* Where a device shows in one network namespace only, it has to be moved into the daemon's. */
static void say_no_device(struct rdma *list)
{
	const struct verbs_api *api = list->api;
	char shared[8];
	bool exclusive = api->read_file(api->arg, NETNS_MODE, shared, sizeof(shared)) == 0 &&
			 shared[0] == 'N';

	snprintf(list->reason, sizeof(list->reason), "no RDMA device in this network namespace%s",
		 !exclusive ? ""
			    : " (netns mode is exclusive: 'rdma dev set NAME netns NETNS' brings "
			      "one)");
}

int rdma_refresh(struct rdma *list, const struct rdma_options *options)
{
	int n = 0, r = 0;
	struct ibv_device **found = list->api->get_device_list(list->api->arg, &n);

	if (!found) {
		/* No uverbs in the kernel: the same as no devices. */
		snprintf(list->reason, sizeof(list->reason),
			 "no RDMA devices: %s (is ib_uverbs loaded?)", strerror(errno));
		n = 0;
	} else if (n == 0) {
		say_no_device(list);
	}
	mark_gone(list, found, n);
	for (uint32_t i = 0; r == 0 && i < list->count; i++) {
		r = rdma_device_update(list->devices[i], options);
	}
	for (int i = 0; r == 0 && i < n; i++) {
		if (!find_device(list, found[i]->name)) {
			r = add_device(list, found[i], options);
		}
	}
	if (found) {
		list->api->free_device_list(list->api->arg, found);
	}
	return err_trace(r);
}

/**
 * rdma_new() - find and open the RDMA devices of this host
 * @api:     borrowed
 * @options: borrowed for the call
 * @ret:     new list, set on success only
 *
 * Return: 0, also when there is no device; negative errno.
 */
int rdma_new(const struct verbs_api *api, const struct rdma_options *options, struct rdma **ret)
{
	struct rdma *list = calloc(1, sizeof(*list));
	int r;

	if (!list) {
		return err_origin(-ENOMEM);
	}
	list->api = api;
	r = rdma_refresh(list, options);
	if (r < 0) {
		rdma_free(list);
		return err_trace(r);
	}
	*ret = list;
	return 0;
}

void rdma_device_close(struct rdma_device *d)
{
	for (uint32_t k = 0; k < d->nports; k++) {
		free(d->ports[k].gids);
		d->ports[k].gids = NULL;
		d->ports[k].ngids = 0;
	}
	if (d->pd) {
		d->api->dealloc_pd(d->pd);
		d->pd = NULL;
	}
	if (d->context) {
		d->api->close_device(d->context);
		d->context = NULL;
	}
}

/**
 * rdma_free() - close the devices
 * @list: consumed; NULL allowed; nothing of the devices is in use any more
 *
 * Return: NULL
 */
struct rdma *rdma_free(struct rdma *list)
{
	if (!list) {
		return NULL;
	}
	for (uint32_t i = 0; i < list->count; i++) {
		rdma_device_close(list->devices[i]);
		free(list->devices[i]);
	}
	free(list);
	return NULL;
}
