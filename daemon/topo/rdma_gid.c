/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * GIDs: addresses in the shape of the RDMA world
 *
 * A RoCE v2 GID is an IPv6 address, or an IPv4 address mapped into one.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "topo/rdma.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "proto/base.h"

int rdma_gid_from_address(const struct sockaddr *addr, union ibv_gid *ret)
{
	if (addr->sa_family == AF_INET) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)addr;

		memset(ret, 0, sizeof(*ret));
		ret->raw[10] = ret->raw[11] = 0xff;
		memcpy(&ret->raw[12], &in->sin_addr, 4);
		return 0;
	}
	if (addr->sa_family == AF_INET6) {
		const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)addr;

		memcpy(ret->raw, &in6->sin6_addr, 16);
		return 0;
	}
	return err_origin(-EAFNOSUPPORT);
}

void rdma_gid_to_address(const union ibv_gid *gid, struct sockaddr_storage *ret)
{
	struct in6_addr a;

	memset(ret, 0, sizeof(*ret));
	memcpy(&a, gid->raw, 16);
	if (IN6_IS_ADDR_V4MAPPED(&a)) {
		struct sockaddr_in *in = (struct sockaddr_in *)ret;

		in->sin_family = AF_INET;
		memcpy(&in->sin_addr, &gid->raw[12], 4);
	} else {
		struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)ret;

		in6->sin6_family = AF_INET6;
		in6->sin6_addr = a;
	}
}

void rdma_gid_text(const union ibv_gid *gid, char text[INET6_ADDRSTRLEN])
{
	struct in6_addr a;

	memcpy(&a, gid->raw, 16);
	if (IN6_IS_ADDR_V4MAPPED(&a)) {
		inet_ntop(AF_INET, &gid->raw[12], text, INET6_ADDRSTRLEN);
	} else {
		inet_ntop(AF_INET6, &a, text, INET6_ADDRSTRLEN);
	}
}

const char *rdma_gid_judge(const struct ibv_gid_entry *entry)
{
	struct in6_addr a;

	memcpy(&a, entry->gid.raw, 16);
	if (IN6_IS_ADDR_UNSPECIFIED(&a)) {
		return "empty";
	}
	if (entry->gid_type == IBV_GID_TYPE_IB) {
		return "an InfiniBand GID";
	}
	if (entry->gid_type != IBV_GID_TYPE_ROCE_V2) {
		return "a RoCE v1 GID, which is not routed";
	}
	if (IN6_IS_ADDR_LINKLOCAL(&a)) {
		return "link-local";
	}
	if (IN6_IS_ADDR_LOOPBACK(&a) || (IN6_IS_ADDR_V4MAPPED(&a) && entry->gid.raw[12] == 127)) {
		return "a loopback address";
	}
	if (IN6_IS_ADDR_V4MAPPED(&a) && entry->gid.raw[12] == 169 && entry->gid.raw[13] == 254) {
		return "link-local";
	}
	return NULL;
}

const struct rdma_gid *rdma_port_find_gid(const struct rdma_port *port, const union ibv_gid *gid,
					  char *why, size_t size)
{
	const struct rdma_gid *other = NULL;
	char text[INET6_ADDRSTRLEN];

	for (uint32_t i = 0; i < port->ngids; i++) {
		const struct rdma_gid *g = &port->gids[i];

		if (memcmp(&g->gid, gid, sizeof(*gid)) != 0) {
			continue;
		}
		if (!g->reason) {
			return g;
		}
		other = g;
	}
	if (why && size > 0) {
		rdma_gid_text(gid, text);
		if (other) {
			snprintf(why, size, "%s port %u: its GID %s is %s", port->device->name,
				 port->number, text, other->reason);
		} else {
			snprintf(why, size, "%s port %u has no GID for %s", port->device->name,
				 port->number, text);
		}
	}
	return NULL;
}

static bool is_at(struct rdma_device *d, uint8_t port, const union ibv_gid *gid, uint32_t index)
{
	struct ibv_gid_entry entry;

	return d->api->query_gid(d->context, port, index, &entry) == 0 &&
	       memcmp(&entry.gid, gid, sizeof(*gid)) == 0 && !rdma_gid_judge(&entry);
}

int rdma_gid_lookup(struct rdma_device *d, uint8_t port, const union ibv_gid *gid, uint32_t *index)
{
	struct ibv_port_attr a = {0};
	int r;

	if (is_at(d, port, gid, *index)) {
		return 0;
	}
	r = d->api->query_port(d->context, port, &a);
	if (r) {
		return err_origin(-r);
	}
	for (int i = 0; i < a.gid_tbl_len; i++) {
		if (is_at(d, port, gid, (uint32_t)i)) {
			*index = (uint32_t)i;
			return 0;
		}
	}
	return -ENOENT;
}
