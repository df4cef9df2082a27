/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of RDMA discovery: devices, verdicts on ports and GIDs, pairs of rails, registration
 *
 * Thread: one      Owns: nothing      Locks: none
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <linux/capability.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/base.h"
#include "tests/fake/verbs/fake_verbs.h"
#include "topo/rdma.h"
#include "topo/rdma_mem.h"

static const struct rdma_options all = {NULL, NULL};

static union ibv_gid gid_of(const char *text)
{
	struct sockaddr_storage a = {0};
	union ibv_gid gid;

	if (strchr(text, ':')) {
		struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&a;

		in6->sin6_family = AF_INET6;
		cr_assert_eq(inet_pton(AF_INET6, text, &in6->sin6_addr), 1);
	} else {
		struct sockaddr_in *in = (struct sockaddr_in *)&a;

		in->sin_family = AF_INET;
		cr_assert_eq(inet_pton(AF_INET, text, &in->sin_addr), 1);
	}
	cr_assert_eq(rdma_gid_from_address((struct sockaddr *)&a, &gid), 0);
	return gid;
}

static void set_gid(struct fake_device *d, int at, const char *text, bool v2, uint32_t ifindex)
{
	d->gids[at] = (struct fake_gid){true, gid_of(text),
					v2 ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1, ifindex};
}

static struct fake_device *bare(struct fake_net *net, uint32_t host, const char *name)
{
	struct fake_device *d = fake_verbs_device(net, host, name, 0);

	memset(d->gids, 0, sizeof(d->gids));
	return d;
}

static struct rdma *look(struct fake_net *net, uint32_t host)
{
	struct rdma *list;

	cr_assert_eq(rdma_new(fake_verbs_api(net, host), &all, &list), 0);
	return list;
}

/* v1 and v2, link-local and IPv4: the one that has type and address, wherever it is. */
Test(rdma, gid_by_type_and_address)
{
	struct fake_net *net = fake_verbs_new(1);
	struct fake_device *a = bare(net, 0, "mlx5_0"), *b = bare(net, 1, "mlx5_0");
	union ibv_gid gid = gid_of("192.168.1.2");
	struct rdma *la, *lb;
	uint32_t index = 0;

	set_gid(a, 0, "fe80::1", false, 2);
	set_gid(a, 1, "fe80::1", true, 2);
	set_gid(a, 2, "192.168.1.2", false, 2);
	/* 3 and 4 are empty: reading them is an error, which says nothing of the others. */
	set_gid(a, 5, "192.168.1.2", true, 2);
	set_gid(b, 7, "192.168.1.2", true, 2);
	la = look(net, 0);
	lb = look(net, 1);
	cr_assert(la->devices[0]->ports[0].usable, "%s", la->devices[0]->ports[0].reason);
	cr_assert_eq(la->devices[0]->ports[0].ngids, 4);
	cr_assert_eq(rdma_port_find_gid(&la->devices[0]->ports[0], &gid, NULL, 0)->index, 5);
	cr_assert_eq(rdma_port_find_gid(&lb->devices[0]->ports[0], &gid, NULL, 0)->index, 7);
	/* It moves. */
	b->gids[3] = b->gids[7];
	b->gids[7].valid = false;
	cr_assert_eq(rdma_gid_lookup(lb->devices[0], 1, &gid, &index), 0);
	cr_assert_eq(index, 3);
	b->gids[3].valid = false;
	cr_assert_eq(rdma_gid_lookup(lb->devices[0], 1, &gid, &index), -ENOENT);
	rdma_free(la);
	rdma_free(lb);
	fake_verbs_free(net);
}

Test(rdma, gid_ipv6_and_vlan)
{
	struct fake_net *net = fake_verbs_new(1);
	struct fake_device *d = bare(net, 0, "mlx5_0");
	union ibv_gid ula = gid_of("fd00::5"), vlan = gid_of("10.9.0.1");
	const struct rdma_gid *g;
	struct rdma *list;

	set_gid(d, 0, "fe80::1", true, 2);
	set_gid(d, 4, "fd00::5", true, 2);
	set_gid(d, 6, "10.9.0.1", true, 4203); /* the fake's eth3, VLAN 42 */
	list = look(net, 0);
	cr_assert_eq(rdma_port_find_gid(&list->devices[0]->ports[0], &ula, NULL, 0)->index, 4);
	g = rdma_port_find_gid(&list->devices[0]->ports[0], &vlan, NULL, 0);
	cr_assert(g && g->index == 6 && g->vlan == 42 && strcmp(g->interface, "eth3") == 0);
	rdma_free(list);
	fake_verbs_free(net);
}

Test(rdma, no_usable_gid_says_why)
{
	struct fake_net *net = fake_verbs_new(1);
	struct fake_device *v1 = bare(net, 0, "v1"), *local = bare(net, 0, "local");
	union ibv_gid gid = gid_of("10.0.0.1");
	struct rdma *list;
	char why[200];

	bare(net, 0, "empty");
	set_gid(v1, 0, "10.0.0.1", false, 2);
	set_gid(local, 1, "fe80::7", true, 2);
	list = look(net, 0);
	cr_assert(!list->devices[0]->ports[0].usable &&
		  strstr(list->devices[0]->ports[0].reason, "RoCE v1"));
	cr_assert(strstr(list->devices[1]->ports[0].reason, "link-local"), "%s",
		  list->devices[1]->ports[0].reason);
	cr_assert(strstr(list->devices[2]->ports[0].reason, "empty"));
	cr_assert_null(rdma_port_find_gid(&list->devices[0]->ports[0], &gid, why, sizeof(why)));
	cr_assert(strstr(why, "v1 port 1") && strstr(why, "10.0.0.1") && strstr(why, "RoCE v1"),
		  "%s", why);
	cr_assert_null(rdma_port_find_gid(&list->devices[2]->ports[0], &gid, why, sizeof(why)));
	cr_assert(strstr(why, "no GID for 10.0.0.1"), "%s", why);
	rdma_free(list);
	fake_verbs_free(net);
}

/* Four devices in sysfs: one opens, the others say why not. */
Test(rdma, devices_that_do_not_open)
{
	struct fake_net *net = fake_verbs_new(1);
	struct fake_device *denied, *absent, *iwarp, *ib;
	struct rdma *list;

	fake_verbs_device(net, 0, "good", 0);
	denied = fake_verbs_device(net, 0, "denied", 1);
	absent = fake_verbs_device(net, 0, "absent", 2);
	iwarp = fake_verbs_device(net, 0, "iwarp", 3);
	ib = fake_verbs_device(net, 0, "ib", 4);
	denied->caps.open_errno = EACCES;
	absent->caps.open_errno = ENOENT;
	iwarp->device.transport_type = IBV_TRANSPORT_IWARP;
	ib->port.link_layer = IBV_LINK_LAYER_INFINIBAND;
	list = look(net, 0);
	cr_assert_eq(list->count, 5);
	cr_assert(list->devices[0]->ports[0].usable);
	cr_assert(strstr(list->devices[1]->reason, "Permission denied") &&
		  strstr(list->devices[1]->reason, "DeviceAllow"));
	cr_assert(strstr(list->devices[2]->reason, "missing"), "%s", list->devices[2]->reason);
	cr_assert(strstr(list->devices[3]->reason, "iWARP"));
	cr_assert(strstr(list->devices[4]->ports[0].reason, "InfiniBand"));
	cr_assert_eq(list->devices[0]->numa, 1);
	cr_assert_str_eq(list->devices[0]->pci, "0000:3b:00.0");
	cr_assert_eq(list->devices[0]->ports[0].mbps, 100000);
	cr_assert_eq(list->devices[0]->ports[0].mtu, 4096);
	rdma_free(list);
	fake_verbs_free(net);
}

Test(rdma, lists_of_the_configuration)
{
	static char mellanox[] = "mlx5_*", eth[] = "eth1", slot[] = "0000:3b:*";
	static char *names[] = {mellanox, eth}, *pci[] = {slot};
	struct value_list some = {names, 2}, by_pci = {pci, 1};
	struct rdma_options allow = {&some, NULL}, deny = {NULL, &some}, both = {&some, &by_pci};
	struct fake_net *net = fake_verbs_new(1);
	struct rdma *list;

	fake_verbs_device(net, 0, "mlx5_0", 1); /* eth2 */
	fake_verbs_device(net, 0, "bnxt_0", 0); /* eth1 */
	fake_verbs_device(net, 0, "irdma0", 2);
	cr_assert_eq(rdma_new(fake_verbs_api(net, 0), &allow, &list), 0);
	cr_assert(list->devices[0]->ports[0].usable && list->devices[1]->ports[0].usable &&
		  !list->devices[2]->ports[0].usable);
	cr_assert_eq(rdma_refresh(list, &deny), 0);
	cr_assert(!list->devices[0]->ports[0].usable && !list->devices[1]->ports[0].usable &&
		  list->devices[2]->ports[0].usable);
	cr_assert(strstr(list->devices[0]->ports[0].reason, "denied"));
	cr_assert(list->devices[0]->ports[0].denied && !list->devices[2]->ports[0].denied);
	cr_assert_eq(rdma_refresh(list, &both), 0);
	cr_assert(!list->devices[0]->ports[0].usable);
	rdma_free(list);
	fake_verbs_free(net);
}

Test(rdma, devices_come_and_go)
{
	struct fake_net *net = fake_verbs_new(1);
	struct fake_device *a = fake_verbs_device(net, 0, "a", 0), *b;
	struct rdma_event event;
	struct rdma *list = look(net, 0);

	cr_assert_eq(list->count, 1);
	b = fake_verbs_device(net, 0, "b", 1);
	a->present = false;
	cr_assert_eq(rdma_refresh(list, &all), 0);
	cr_assert(list->count == 2 && list->devices[0]->gone && !list->devices[1]->gone);
	cr_assert(!list->devices[0]->ports[0].usable &&
		  strstr(list->devices[0]->ports[0].reason, "removed"));
	/* It comes back as a new one: registrations of the old one are void. */
	a->present = true;
	cr_assert_eq(rdma_refresh(list, &all), 0);
	cr_assert(list->count == 3 && list->devices[2]->index == 2);

	cr_assert_eq(rdma_device_event(list->devices[1], &event), -EAGAIN);
	fake_verbs_link(b, false);
	cr_assert_eq(rdma_device_event(list->devices[1], &event), 0);
	cr_assert(event.kind == RDMA_EVENT_PORT_DOWN && event.port == 1);
	cr_assert_eq(rdma_device_update(list->devices[1], &all), 0);
	cr_assert(!list->devices[1]->ports[0].usable &&
		  strstr(list->devices[1]->ports[0].reason, "down"));
	rdma_free(list);
	fake_verbs_free(net);
}

/* A NIC that is reset again and again keeps its place, and the others keep theirs. */
Test(rdma, device_comes_again)
{
	struct fake_net *net = fake_verbs_new(1);
	struct fake_device *a = fake_verbs_device(net, 0, "a", 0);
	struct rdma *list;

	fake_verbs_device(net, 0, "b", 1);
	list = look(net, 0);
	for (int i = 0; i < 3 * RDMA_DEVICES_MAX; i++) {
		a->present = false;
		cr_assert_eq(rdma_refresh(list, &all), 0);
		cr_assert(list->devices[0]->gone);
		rdma_device_close(list->devices[0]);
		a->present = true;
		cr_assert_eq(rdma_refresh(list, &all), 0);
		cr_assert(list->count == 2 && !list->devices[0]->gone && list->devices[0]->context);
		cr_assert(list->devices[0]->ports[0].usable && !list->devices[0]->reason[0]);
	}
	/* As long as somebody has the old one open it takes another. */
	for (int i = 2; i < RDMA_DEVICES_MAX + 5; i++) {
		a->present = false;
		cr_assert_eq(rdma_refresh(list, &all), 0);
		a->present = true;
		cr_assert_eq(rdma_refresh(list, &all), 0);
		cr_assert_eq(list->count, (uint32_t)MIN(i + 1, RDMA_DEVICES_MAX));
	}
	cr_assert_eq(list->devices[1]->gone, false);
	rdma_free(list);
	fake_verbs_free(net);
}

/* ---- pairs ------------------------------------------------------------------------------- */

static int route_subnet(void *arg, uint32_t ifindex, const union ibv_gid *from,
			const union ibv_gid *to)
{
	return memcmp(from->raw, to->raw, 14) == 0 ? 0 : -ENETUNREACH;
}

static int route_all(void *arg, uint32_t ifindex, const union ibv_gid *from,
		     const union ibv_gid *to)
{
	return 0;
}

Test(rdma, rails_pair_by_subnet)
{
	struct fake_net *net = fake_verbs_new(1);
	struct rdma_remote remote[3] = {
		{gid_of("10.2.0.9"), 0}, {gid_of("fd00::1"), 1}, {gid_of("10.0.0.9"), 2}};
	struct rdma_pair pairs[4];
	struct rdma *list;

	fake_verbs_device(net, 0, "r0", 0);
	fake_verbs_device(net, 0, "r1", 1);
	fake_verbs_device(net, 0, "r2", 2);
	list = look(net, 0);
	cr_assert_eq(rdma_pair_rails(list, remote, 3, route_subnet, NULL, pairs, 0, 4), 2);
	for (int i = 0; i < 2; i++) {
		cr_assert_eq(pairs[i].remote, pairs[i].port == &list->devices[0]->ports[0] ? 2 : 0);
		cr_assert(pairs[i].port != &list->devices[1]->ports[0]);
	}
	cr_assert_eq(rdma_pair_rails(list, remote, 3, route_subnet, NULL, pairs, 0, 1), 1);
	rdma_free(list);
	fake_verbs_free(net);
}

/* All in one flat subnet: each NIC has a partner of its own. */
Test(rdma, rails_pair_in_a_flat_network)
{
	struct fake_net *net = fake_verbs_new(1);
	struct rdma_remote remote[2] = {{gid_of("10.5.0.101"), 0}, {gid_of("10.5.0.102"), 1}};
	struct fake_device *a = bare(net, 0, "r0"), *b = bare(net, 0, "r1");
	struct rdma_pair pairs[4];
	struct rdma *list;

	set_gid(a, 3, "10.5.0.1", true, 2);
	set_gid(b, 5, "10.5.0.2", true, 3);
	list = look(net, 0);
	cr_assert_eq(rdma_pair_rails(list, remote, 2, route_all, NULL, pairs, 0, 4), 2);
	cr_assert(pairs[0].port != pairs[1].port && pairs[0].remote != pairs[1].remote);
	/* What is paired stays so. */
	pairs[0].remote = 1;
	cr_assert_eq(rdma_pair_rails(list, remote, 2, route_all, NULL, pairs, 1, 4), 2);
	cr_assert(pairs[1].port != pairs[0].port && pairs[1].remote == 0);
	/* Two addresses of one port are one partner. */
	remote[1].port = 0;
	cr_assert_eq(rdma_pair_rails(list, remote, 2, route_all, NULL, pairs, 0, 4), 1);
	rdma_free(list);
	fake_verbs_free(net);
}

/* The kernel's view of a route that is surely there. */
Test(rdma, route_of_loopback)
{
	union ibv_gid here = gid_of("127.0.0.1"), there = gid_of("127.0.0.2"),
		      strange = gid_of("203.0.113.77");

	cr_assert_eq(rdma_route_system(NULL, 0, &here, &there), 0);
	cr_assert(rdma_route_system(NULL, 0, &strange, &there) < 0);
}

/* ---- registration ------------------------------------------------------------------------ */

/* Whoever has the capability has no limit. */
static void limit_memlock(rlim_t bytes)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
	struct rlimit limit = {bytes, bytes};

	cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
	cr_assert_eq(syscall(SYS_capget, &header, data), 0);
	data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective &= ~CAP_TO_MASK(CAP_IPC_LOCK);
	cr_assert_eq(syscall(SYS_capset, &header, data), 0);
}

Test(rdma, registration_says_why)
{
	struct fake_net *net = fake_verbs_new(1);
	struct fake_device *a = fake_verbs_device(net, 0, "a", 0);
	static uint8_t memory[1 << 20];
	struct rdma_mem *m;
	struct rdma *list;

	fake_verbs_device(net, 0, "b", 1);
	list = look(net, 0);
	a->caps.reg_errno = ENOMEM;
	limit_memlock(64 << 10);
	cr_assert_eq(rdma_mem_new(list, memory, sizeof(memory), &m), 0);
	cr_assert(!m->mr[0] && m->mr[1]);
	cr_assert(strstr(m->reason, "a:") && strstr(m->reason, "64 KiB") &&
			  strstr(m->reason, "1024 KiB") && strstr(m->reason, "LimitMEMLOCK"),
		  "%s", m->reason);
	a->caps.reg_errno = EFAULT;
	cr_assert_eq(rdma_mem_add_device(m, list->devices[0]), -EFAULT);
	cr_assert(strstr(m->reason, "cannot be registered"), "%s", m->reason);
	a->caps.reg_errno = 0;
	cr_assert_eq(rdma_mem_add_device(m, list->devices[0]), 0);
	rdma_mem_free(m);
	rdma_free(list);
	fake_verbs_free(net);
}

/* Each refusal is counted by its cause, and what is registered is counted while it is. */
Test(rdma, refusals_are_counted)
{
	static const struct {
		int error;
		enum rdma_refusal why;
	} rows[] = {{ENOMEM, RDMA_REFUSED_MEMLOCK}, {EAGAIN, RDMA_REFUSED_MEMLOCK},
		    {EFAULT, RDMA_REFUSED_KIND},    {EINVAL, RDMA_REFUSED_KIND},
		    {524, RDMA_REFUSED_KIND},	    {EIO, RDMA_REFUSED_OTHER}};
	struct fake_net *net = fake_verbs_new(1);
	struct fake_device *d = fake_verbs_device(net, 0, "a", 0);
	static uint8_t memory[3][4096];
	struct rdma_mem *m[3];
	struct rdma_device *dev;
	struct rdma *list;

	limit_memlock(64 << 10);
	d->caps.max_mr = 2;
	list = look(net, 0);
	dev = list->devices[0];
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		uint32_t before = dev->refused[rows[i].why];

		d->caps.reg_errno = rows[i].error;
		cr_assert_eq(rdma_mem_new(list, memory, sizeof(memory), &m[0]), 0);
		cr_assert_eq(dev->refused[rows[i].why], before + 1, "%d", rows[i].error);
		rdma_mem_free(m[0]);
	}
	cr_assert_eq(dev->regions, 0);
	/* The device is full: the limit of locked memory is not to blame. */
	d->caps.reg_errno = 0;
	for (int i = 0; i < 3; i++) {
		cr_assert_eq(rdma_mem_new(list, memory[i], sizeof(memory[i]), &m[i]), 0);
	}
	cr_assert(m[0]->mr[0] && m[1]->mr[0] && !m[2]->mr[0]);
	cr_assert_eq(dev->refused[RDMA_REFUSED_FULL], 1);
	cr_assert(strstr(m[2]->reason, "takes 2 regions") && strstr(m[2]->reason, "and 2 are") &&
			  !strstr(m[2]->reason, "MEMLOCK"),
		  "%s", m[2]->reason);
	cr_assert(dev->regions == 2 && dev->region_bytes == 2 * sizeof(memory[0]));
	cr_assert_eq(m[2]->full, 1);
	/* One that is gone is not full: nothing that is given back there would help. */
	dev->gone = true;
	cr_assert_eq(rdma_mem_add_device(m[2], dev), -ENODEV);
	cr_assert_eq(m[2]->full, 0);
	dev->gone = false;
	/* There is room again. */
	rdma_mem_free(m[0]);
	cr_assert_eq(rdma_mem_add_device(m[2], dev), 0);
	rdma_mem_free(m[1]);
	rdma_mem_free(m[2]);
	cr_assert(dev->regions == 0 && dev->region_bytes == 0);
	rdma_free(list);
	fake_verbs_free(net);
}

/* A device or kernel that does not know relaxed ordering does without. */
Test(rdma, ordering_falls_back)
{
	static const int errors[] = {EINVAL, EOPNOTSUPP, 524};
	struct fake_net *net = fake_verbs_new(1);
	struct fake_device *d = fake_verbs_device(net, 0, "a", 0);
	struct rdma *list = look(net, 0);
	static uint8_t memory[4096];
	struct fake_mr_view view;
	struct rdma_mem *m;

	cr_assert_eq(rdma_mem_new(list, memory, sizeof(memory), &m), 0);
	fake_verbs_mrs(d, &view);
	cr_assert(view.access & IBV_ACCESS_RELAXED_ORDERING);
	rdma_mem_free(m);
	for (size_t i = 0; i < ARRAY_SIZE(errors); i++) {
		d->caps.relaxed_errno = errors[i];
		cr_assert_eq(rdma_mem_new(list, memory, sizeof(memory), &m), 0);
		fake_verbs_mrs(d, &view);
		cr_assert(m->mr[0] && !(view.access & IBV_ACCESS_RELAXED_ORDERING));
		cr_assert(view.access & IBV_ACCESS_REMOTE_WRITE);
		rdma_mem_drop_device(m, list->devices[0]);
		cr_assert_eq(rdma_mem_add_dmabuf(m, list->devices[0], 5, 0), RDMA_MEM_DMABUF);
		fake_verbs_mrs(d, &view);
		cr_assert(view.dmabufs == 1 && !(view.access & IBV_ACCESS_RELAXED_ORDERING));
		rdma_mem_free(m);
	}
	cr_assert_eq(list->devices[0]->refused[RDMA_REFUSED_KIND], 0);
	rdma_free(list);
	fake_verbs_free(net);
}

/* dma-buf, then a peer memory module, then staging. */
Test(rdma, dmabuf_falls_back)
{
	static const int errors[] = {EOPNOTSUPP, EINVAL, 524, EFAULT};
	struct fake_net *net = fake_verbs_new(1);
	struct fake_device *d = fake_verbs_device(net, 0, "a", 0);
	static uint8_t memory[4096] __attribute__((aligned(4096)));
	struct rdma *list = look(net, 0);
	struct rdma_mem *m;

	for (size_t i = 0; i < ARRAY_SIZE(errors); i++) {
		cr_assert_eq(rdma_mem_new(NULL, memory, sizeof(memory), &m), 0);
		d->caps.dmabuf_errno = errors[i];
		d->caps.reg_errno = errors[i];
		cr_assert_eq(rdma_mem_add_dmabuf(m, list->devices[0], 5, 0), RDMA_MEM_NONE);
		cr_assert(!m->mr[0] && m->reason[0]);
		cr_assert(!strstr(m->reason, "Unknown error"), "%s", m->reason);
		d->caps.reg_errno = 0;
		cr_assert_eq(rdma_mem_add_dmabuf(m, list->devices[0], 5, 0), RDMA_MEM_PEER);
		cr_assert(m->mr[0]);
		rdma_mem_drop_device(m, list->devices[0]);
		d->caps.dmabuf_errno = 0;
		cr_assert_eq(rdma_mem_add_dmabuf(m, list->devices[0], 5, 0), RDMA_MEM_DMABUF);
		rdma_mem_drop_device(m, list->devices[0]);
		/* What lies otherwise in its page than in the dma-buf cannot be a dma-buf's. */
		cr_assert_eq(rdma_mem_add_dmabuf(m, list->devices[0], 5, 64), RDMA_MEM_PEER);
		rdma_mem_drop_device(m, list->devices[0]);
		/* There is no descriptor. */
		cr_assert_eq(rdma_mem_add_dmabuf(m, list->devices[0], -1, 0), RDMA_MEM_PEER);
		cr_assert_eq(list->devices[0]->refused[RDMA_REFUSED_KIND], i + 1);
		rdma_mem_free(m);
	}
	rdma_free(list);
	fake_verbs_free(net);
}
