/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Interfaces: which addresses of this host other hosts may be told
 *
 * A snapshot of all addresses, each with a verdict and, where it is refused, the reason: for the
 * error that says why no address is left, and for rocectl. Never loopback and never link-local;
 * bridges of container and virtual machine managers only when `interfaces` names them, since they
 * have the same addresses on every host and reach nobody. Usable ones are in order of preference:
 * hardware before virtual, IPv4 before IPv6.
 *
 * Thread: control      Owns: its list      Locks: none
 */
#ifndef ROCECOMM_TOPO_INTERFACES_H
#define ROCECOMM_TOPO_INTERFACES_H

#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include "config/value.h"

struct interface_address {
	char interface[IF_NAMESIZE];
	char text[INET6_ADDRSTRLEN]; /* numeric */
	int family;		     /* AF_INET, AF_INET6 */
	bool hardware;		     /* the interface is a device, not made by software */
	const char *reason;	     /* static: why it is not told to others; NULL: usable */
};

struct interfaces {
	struct interface_address *items; /* [count], usable ones first */
	size_t count;
	size_t usable;
};

/*
 * @patterns: config `interfaces`; @listen: config `listen`, when not empty only these addresses.
 * Return: 0, negative errno.
 */
int interfaces_new(const struct value_list *patterns, const struct value_list *listen,
		   struct interfaces **ret);
/* Looks again; @list keeps its place, not its items, and is as it was when that fails. */
int interfaces_refresh(struct interfaces *list, const struct value_list *patterns,
		       const struct value_list *listen);
struct interfaces *interfaces_free(struct interfaces *list);

/*
 * The verdict on one address. @flags: IFF_. Return: static reason, or NULL: usable.
 */
const char *interfaces_judge(const char *interface, unsigned int flags, const struct sockaddr *addr,
			     const struct value_list *patterns, const struct value_list *listen);
/* Refused addresses as a part of a sentence: "lo 127.0.0.1 (loopback), docker0 ... (...)". */
void interfaces_describe(const struct interfaces *list, char *buf, size_t size);

#endif
