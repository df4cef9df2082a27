/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Pairs of rails: which port of ours talks to which port of the peer
 *
 * Two NICs of one subnet must not both be paired with the same NIC of the peer, and a NIC must not
 * be paired with one that it does not reach. The pairs with the longest common prefix come first:
 * NICs of one rail network share a subnet. Among equals, the order of the lists decides.
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#include "topo/rdma.h"

#include <string.h>
#include <unistd.h>

#include "proto/base.h"

static bool is_v4(const union ibv_gid *gid)
{
	struct sockaddr_storage a;

	rdma_gid_to_address(gid, &a);
	return a.ss_family == AF_INET;
}

static int common_prefix(const union ibv_gid *a, const union ibv_gid *b)
{
	for (int i = 0; i < 16; i++) {
		uint8_t diff = a->raw[i] ^ b->raw[i];

		if (diff) {
			return i * 8 + __builtin_clz((unsigned int)diff << 24);
		}
	}
	return 128;
}

int rdma_route_system(void *arg, uint32_t ifindex, const union ibv_gid *from,
		      const union ibv_gid *to)
{
	struct sockaddr_storage local, remote;
	cleanup_close int fd = -1;
	char name[IF_NAMESIZE];
	socklen_t size;

	rdma_gid_to_address(from, &local);
	rdma_gid_to_address(to, &remote);
	size = local.ss_family == AF_INET ? sizeof(struct sockaddr_in)
					  : sizeof(struct sockaddr_in6);
	fd = socket(local.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0) {
		return err_origin(-errno);
	}
	/* The port is of no interest, but 0 is refused by some stacks. */
	((struct sockaddr_in *)&remote)->sin_port = htons(4791);
	if (ifindex && if_indextoname(ifindex, name) &&
	    setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, (socklen_t)strlen(name) + 1) < 0 &&
	    errno != EPERM) {
		return -errno;
	}
	if (bind(fd, (struct sockaddr *)&local, size) < 0 ||
	    connect(fd, (struct sockaddr *)&remote, size) < 0) {
		return -errno;
	}
	return 0;
}

struct best {
	struct rdma_port *port;
	const struct rdma_gid *gid;
	uint32_t remote;
	int prefix;
};

struct search {
	const struct rdma_remote *remote;
	uint32_t nremote;
	rdma_route_fn route;
	void *arg;
	struct rdma_pair *pairs;
	uint32_t n;
};

static bool taken(const struct search *s, const struct rdma_port *port, uint32_t remote)
{
	for (uint32_t i = 0; i < s->n; i++) {
		const struct rdma_pair *p = &s->pairs[i];

		if (p->port == port || (p->remote < s->nremote &&
					s->remote[p->remote].port == s->remote[remote].port)) {
			return true;
		}
	}
	return false;
}

static void search_port(const struct search *s, struct rdma_port *port, struct best *best)
{
	for (uint32_t g = 0; g < port->ngids; g++) {
		const struct rdma_gid *gid = &port->gids[g];

		for (uint32_t i = 0; !gid->reason && i < s->nremote; i++) {
			const union ibv_gid *remote = &s->remote[i].gid;
			int prefix = common_prefix(&gid->gid, remote);

			if (prefix > best->prefix && !taken(s, port, i) &&
			    is_v4(&gid->gid) == is_v4(remote) &&
			    s->route(s->arg, gid->ifindex, &gid->gid, remote) == 0) {
				*best = (struct best){port, gid, i, prefix};
			}
		}
	}
}

uint32_t rdma_pair_rails(struct rdma *list, const struct rdma_remote *remote, uint32_t nremote,
			 rdma_route_fn route, void *arg, struct rdma_pair *ret, uint32_t have,
			 uint32_t max)
{
	struct search s = {remote, nremote, route, arg, ret, have};

	while (s.n < max) {
		struct best best = {.prefix = -1};

		for (uint32_t d = 0; d < list->count; d++) {
			struct rdma_device *device = list->devices[d];

			for (uint32_t p = 0; p < device->nports; p++) {
				if (device->ports[p].usable) {
					search_port(&s, &device->ports[p], &best);
				}
			}
		}
		if (!best.port) {
			break;
		}
		ret[s.n++] = (struct rdma_pair){best.port, best.gid, best.remote};
	}
	return s.n;
}
