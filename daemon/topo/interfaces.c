/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Interfaces: implementation
 *
 * Thread: control      Owns: see interfaces.h      Locks: none
 */
#include "topo/interfaces.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <fnmatch.h>
#include <ifaddrs.h>
#include <stdio.h>
#include <string.h>

#include "proto/base.h"

/* What container and virtual machine managers call their bridges. */
static const char *const bridges[] = {
	"docker*", "virbr*", "podman*", "cni*", "lxcbr*", "lxdbr*", "nerdctl*", "kube-*",
};

/* "br-" and 12 hexadecimal digits: a network of docker. br-lan is somebody's own bridge. */
static bool docker_network(const char *name)
{
	size_t n = 0;

	if (strncmp(name, "br-", 3) != 0) {
		return false;
	}
	while (isxdigit((unsigned char)name[3 + n])) {
		n++;
	}
	return n == 12 && name[3 + n] == '\0';
}

static bool manager_bridge(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(bridges); i++) {
		if (fnmatch(bridges[i], name, 0) == 0) {
			return true;
		}
	}
	return docker_network(name);
}

/* Return: NULL, or why the interface's name rules it out. */
static const char *judge_name(const char *name, const struct value_list *patterns)
{
	bool positive = false, named = false;

	for (size_t i = 0; i < patterns->count; i++) {
		const char *pattern = patterns->items[i];

		if (pattern[0] == '!') {
			if (fnmatch(pattern + 1, name, 0) == 0) {
				return "left out by config key interfaces";
			}
		} else {
			positive = true;
			named = named || fnmatch(pattern, name, 0) == 0;
		}
	}
	if (positive && !named) {
		return "not in config key interfaces";
	}
	if (!named && manager_bridge(name)) {
		return "bridge of containers or virtual machines";
	}
	return NULL;
}

static const char *judge_address(const struct sockaddr *addr)
{
	const struct in6_addr *six;

	if (addr->sa_family == AF_INET) {
		uint32_t a = ntohl(((const struct sockaddr_in *)addr)->sin_addr.s_addr);

		if (a >> 24 == 127) {
			return "loopback";
		}
		if (a >> 16 == 0xa9fe) {
			return "link-local";
		}
		return a == 0 ? "unspecified" : NULL;
	}
	six = &((const struct sockaddr_in6 *)addr)->sin6_addr;
	if (IN6_IS_ADDR_LOOPBACK(six)) {
		return "loopback";
	}
	if (IN6_IS_ADDR_LINKLOCAL(six)) {
		return "link-local";
	}
	return IN6_IS_ADDR_UNSPECIFIED(six) ? "unspecified" : NULL;
}

static const void *raw_address(const struct sockaddr *addr, size_t *ret_size)
{
	if (addr->sa_family == AF_INET) {
		*ret_size = sizeof(struct in_addr);
		return &((const struct sockaddr_in *)addr)->sin_addr;
	}
	*ret_size = sizeof(struct in6_addr);
	return &((const struct sockaddr_in6 *)addr)->sin6_addr;
}

/* Compared as numbers: IPv6 has many spellings. */
static bool in_list(const struct sockaddr *addr, const struct value_list *list)
{
	uint8_t buf[sizeof(struct in6_addr)];
	const void *raw;
	size_t size;

	raw = raw_address(addr, &size);
	for (size_t i = 0; i < list->count; i++) {
		if (inet_pton(addr->sa_family, list->items[i], buf) == 1 &&
		    memcmp(buf, raw, size) == 0) {
			return true;
		}
	}
	return false;
}

static bool wildcard(const struct value_list *list)
{
	for (size_t i = 0; i < list->count; i++) {
		if (strcmp(list->items[i], "0.0.0.0") == 0 || strcmp(list->items[i], "::") == 0) {
			return true;
		}
	}
	return false;
}

/* See interfaces.h. */
const char *interfaces_judge(const char *interface, unsigned int flags, const struct sockaddr *addr,
			     const struct value_list *patterns, const struct value_list *listen)
{
	const char *reason;

	if (flags & IFF_LOOPBACK) {
		return "loopback";
	}
	reason = judge_address(addr);
	if (!reason && !(flags & IFF_UP)) {
		reason = "interface is down";
	}
	if (!reason && !(flags & IFF_RUNNING)) {
		reason = "interface has no carrier";
	}
	if (!reason) {
		reason = judge_name(interface, patterns);
	}
	if (!reason && listen->count > 0 && !wildcard(listen) && !in_list(addr, listen)) {
		reason = "not in config key listen";
	}
	return reason;
}

static bool is_hardware(const char *name)
{
	char path[64 + IF_NAMESIZE];

	snprintf(path, sizeof(path), "/sys/class/net/%s/device", name);
	return access(path, F_OK) == 0;
}

/* Usable first, hardware first, IPv4 first, then by name and address: the same in every run. */
static int compare(const void *a, const void *b)
{
	const struct interface_address *x = a, *y = b;
	int d;

	if (!x->reason != !y->reason) {
		return x->reason ? 1 : -1;
	}
	if (x->hardware != y->hardware) {
		return x->hardware ? -1 : 1;
	}
	if (x->family != y->family) {
		return x->family == AF_INET ? -1 : 1;
	}
	d = strcmp(x->interface, y->interface);
	return d != 0 ? d : strcmp(x->text, y->text);
}

static int add(struct interfaces *list, const struct ifaddrs *ifa, const char *reason)
{
	struct interface_address *items, *item;
	size_t size;

	items = realloc(list->items, (list->count + 1) * sizeof(*items));
	if (!items) {
		return err_origin(-ENOMEM);
	}
	list->items = items;
	item = &items[list->count];
	*item = (struct interface_address){.family = ifa->ifa_addr->sa_family, .reason = reason};
	snprintf(item->interface, sizeof(item->interface), "%s", ifa->ifa_name);
	item->hardware = is_hardware(item->interface);
	if (!inet_ntop(item->family, raw_address(ifa->ifa_addr, &size), item->text,
		       sizeof(item->text))) {
		return err_origin(-errno);
	}
	list->count++;
	list->usable += reason ? 0 : 1;
	return 0;
}

/* See interfaces.h. */
int interfaces_new(const struct value_list *patterns, const struct value_list *listen,
		   struct interfaces **ret)
{
	struct interfaces *list;
	struct ifaddrs *all;
	int r = 0;

	list = calloc(1, sizeof(*list));
	if (!list) {
		return err_origin(-ENOMEM);
	}
	if (getifaddrs(&all) < 0) {
		free(list);
		return err_origin(-errno);
	}
	for (const struct ifaddrs *ifa = all; ifa && r == 0; ifa = ifa->ifa_next) {
		if (ifa->ifa_addr &&
		    (ifa->ifa_addr->sa_family == AF_INET || ifa->ifa_addr->sa_family == AF_INET6)) {
			r = add(list, ifa,
				interfaces_judge(ifa->ifa_name, ifa->ifa_flags, ifa->ifa_addr,
						 patterns, listen));
		}
	}
	freeifaddrs(all);
	if (r < 0) {
		interfaces_free(list);
		return err_trace(r);
	}
	if (list->count > 0) {
		qsort(list->items, list->count, sizeof(*list->items), compare);
	}
	*ret = list;
	return 0;
}

/* See interfaces.h. */
int interfaces_refresh(struct interfaces *list, const struct value_list *patterns,
		       const struct value_list *listen)
{
	struct interfaces *fresh, old = *list;
	int r;

	r = interfaces_new(patterns, listen, &fresh);
	if (r < 0) {
		return err_trace(r);
	}
	*list = *fresh;
	*fresh = old;
	interfaces_free(fresh);
	return 0;
}

/**
 * interfaces_free() - free a snapshot
 * @list:  consumed, may be NULL
 *
 * Return: NULL
 */
struct interfaces *interfaces_free(struct interfaces *list)
{
	if (list) {
		free(list->items);
		free(list);
	}
	return NULL;
}

/* See interfaces.h. */
void interfaces_describe(const struct interfaces *list, char *buf, size_t size)
{
	size_t used = 0;

	snprintf(buf, size, "%s", list->usable == list->count ? "none" : "");
	for (size_t i = list->usable; i < list->count; i++) {
		const struct interface_address *a = &list->items[i];
		int n = snprintf(buf + used, size - used, "%s%s %s (%s)", used > 0 ? ", " : "",
				 a->interface, a->text, a->reason);

		if (n < 0 || (size_t)n >= size - used) {
			return;
		}
		used += (size_t)n;
	}
}
