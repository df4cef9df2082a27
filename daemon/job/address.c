/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Address: parsing, formatting, comparing, and finding the interface of one
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "job/address.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "proto/base.h"

static void address_from_in(struct sockaddr_storage *ret, const struct in_addr *in, uint16_t port)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_port = port, .sin_addr = *in};

	memset(ret, 0, sizeof(*ret));
	memcpy(ret, &sin, sizeof(sin));
}

/* A mapped IPv4 address becomes one; all others stay. */
static void address_normalise(const struct sockaddr_storage *address, struct sockaddr_storage *ret)
{
	struct sockaddr_in6 sin6;
	struct in_addr in;

	*ret = *address;
	if (address->ss_family != AF_INET6) {
		return;
	}
	memcpy(&sin6, address, sizeof(sin6));
	if (IN6_IS_ADDR_V4MAPPED(&sin6.sin6_addr)) {
		memcpy(&in, sin6.sin6_addr.s6_addr + 12, sizeof(in));
		address_from_in(ret, &in, sin6.sin6_port);
	}
}

static int parse_in6(char *text, uint16_t port, struct sockaddr_storage *ret)
{
	struct sockaddr_in6 sin6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
	struct sockaddr_storage all = {0};
	char *scope = strchr(text, '%');

	if (scope) {
		*scope = '\0';
		sin6.sin6_scope_id = if_nametoindex(scope + 1);
		if (sin6.sin6_scope_id == 0) {
			return -EINVAL;
		}
	}
	if (inet_pton(AF_INET6, text, &sin6.sin6_addr) != 1) {
		return -EINVAL;
	}
	memcpy(&all, &sin6, sizeof(sin6));
	address_normalise(&all, ret);
	return 0;
}

/* See address.h. */
int address_parse(const char *text, uint16_t port, struct sockaddr_storage *ret)
{
	char buf[INET6_ADDRSTRLEN + IF_NAMESIZE + 2];
	size_t size = strlen(text);
	struct in_addr in;

	if (size >= 2 && text[0] == '[' && text[size - 1] == ']') {
		text++;
		size -= 2;
	}
	if (size >= sizeof(buf)) {
		return -EINVAL;
	}
	memcpy(buf, text, size);
	buf[size] = '\0';
	if (inet_pton(AF_INET, buf, &in) == 1) {
		address_from_in(ret, &in, htons(port));
		return 0;
	}
	return parse_in6(buf, port, ret);
}

/* See address.h. */
void address_format(const struct sockaddr_storage *address, bool port, char *buf, size_t size)
{
	char host[INET6_ADDRSTRLEN] = "?", scope[IF_NAMESIZE + 1] = "", suffix[8] = "";
	struct sockaddr_storage a;
	bool brackets = false;

	address_normalise(address, &a);
	if (a.ss_family == AF_INET) {
		struct sockaddr_in sin;

		memcpy(&sin, &a, sizeof(sin));
		inet_ntop(AF_INET, &sin.sin_addr, host, sizeof(host));
	} else if (a.ss_family == AF_INET6) {
		struct sockaddr_in6 sin6;

		memcpy(&sin6, &a, sizeof(sin6));
		inet_ntop(AF_INET6, &sin6.sin6_addr, host, sizeof(host));
		if (sin6.sin6_scope_id != 0 && if_indextoname(sin6.sin6_scope_id, scope + 1)) {
			scope[0] = '%';
		}
		brackets = port;
	}
	if (port) {
		snprintf(suffix, sizeof(suffix), ":%u", address_port(&a));
	}
	snprintf(buf, size, "%s%s%s%s%s", brackets ? "[" : "", host, scope, brackets ? "]" : "",
		 suffix);
}

/* See address.h. */
socklen_t address_length(const struct sockaddr_storage *address)
{
	return address->ss_family == AF_INET ? sizeof(struct sockaddr_in)
					     : sizeof(struct sockaddr_in6);
}

/* See address.h. */
uint16_t address_port(const struct sockaddr_storage *address)
{
	struct sockaddr_in sin;

	/* The port is at the same place in both families. */
	static_assert(offsetof(struct sockaddr_in, sin_port) ==
			      offsetof(struct sockaddr_in6, sin6_port),
		      "port");
	memcpy(&sin, address, sizeof(sin));
	return ntohs(sin.sin_port);
}

/* See address.h. */
void address_set_port(struct sockaddr_storage *address, uint16_t port)
{
	uint16_t be = htons(port);

	memcpy((char *)address + offsetof(struct sockaddr_in, sin_port), &be, sizeof(be));
}

/* See address.h. */
bool address_is_loopback(const struct sockaddr_storage *address)
{
	struct sockaddr_storage a;

	address_normalise(address, &a);
	if (a.ss_family == AF_INET) {
		struct sockaddr_in sin;

		memcpy(&sin, &a, sizeof(sin));
		return ntohl(sin.sin_addr.s_addr) >> 24 == 127;
	}
	if (a.ss_family == AF_INET6) {
		struct sockaddr_in6 sin6;

		memcpy(&sin6, &a, sizeof(sin6));
		return IN6_IS_ADDR_LOOPBACK(&sin6.sin6_addr);
	}
	return false;
}

/* See address.h. */
bool address_equal(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
	struct sockaddr_storage x, y;

	address_normalise(a, &x);
	address_normalise(b, &y);
	if (x.ss_family != y.ss_family) {
		return false;
	}
	if (x.ss_family == AF_INET) {
		return memcmp((char *)&x + offsetof(struct sockaddr_in, sin_addr),
			      (char *)&y + offsetof(struct sockaddr_in, sin_addr),
			      sizeof(struct in_addr)) == 0;
	}
	return x.ss_family == AF_INET6 &&
	       memcmp((char *)&x + offsetof(struct sockaddr_in6, sin6_addr),
		      (char *)&y + offsetof(struct sockaddr_in6, sin6_addr),
		      sizeof(struct in6_addr)) == 0;
}

/* See address.h. */
bool address_interface(const struct sockaddr_storage *address, char *buf, size_t size)
{
	struct ifaddrs *all = NULL;
	bool found = false;

	if (getifaddrs(&all) < 0) {
		return false;
	}
	for (struct ifaddrs *i = all; i && !found; i = i->ifa_next) {
		struct sockaddr_storage a = {0};

		if (!i->ifa_addr ||
		    (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6)) {
			continue;
		}
		a.ss_family = i->ifa_addr->sa_family;
		memcpy(&a, i->ifa_addr, address_length(&a));
		if (address_equal(&a, address)) {
			snprintf(buf, size, "%s", i->ifa_name);
			found = true;
		}
	}
	freeifaddrs(all);
	return found;
}
