/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Address: numeric IP addresses, as text and as the kernel has them
 *
 * Never a name look-up: a text that is not an address is an error. IPv4 addresses mapped into IPv6
 * are treated as the IPv4 addresses that they are.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_JOB_ADDRESS_H
#define ROCECOMM_JOB_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define ADDRESS_TEXT 80 /* "[fe80::...%interface]:65535" with the final 0 */

/* "10.1.0.2", "fd00::1", "[fd00::1]", "fe80::1%eth0". Return: 0, -EINVAL. */
int address_parse(const char *text, uint16_t port, struct sockaddr_storage *ret);
/* "10.1.0.2:7470", "[fd00::1]:7470"; without port: "10.1.0.2", "fd00::1". */
void address_format(const struct sockaddr_storage *address, bool port, char *buf, size_t size);
socklen_t address_length(const struct sockaddr_storage *address);
uint16_t address_port(const struct sockaddr_storage *address);
void address_set_port(struct sockaddr_storage *address, uint16_t port);
bool address_is_loopback(const struct sockaddr_storage *address);
/* Is it the same host address (ports and scopes aside)? */
bool address_equal(const struct sockaddr_storage *a, const struct sockaddr_storage *b);
/* Name of the interface that has this address. @buf: IF_NAMESIZE. Return: false if none has. */
bool address_interface(const struct sockaddr_storage *address, char *buf, size_t size);

#endif
