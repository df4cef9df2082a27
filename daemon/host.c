/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Host: implementation
 *
 * Thread: control      Owns: see host.h      Locks: none
 */
#include "host.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "proto/base.h"
#include "util/log.h"

static void host_add(struct host *host, const char *address)
{
	if (host->naddresses < PEER_MAX_ADDRESSES) {
		char *text = host->text[host->naddresses];

		snprintf(text, sizeof(host->text[0]), "%s", address);
		host->addresses[host->naddresses++] = text;
	}
}

/* Chooses among what the interfaces have. */
static void host_choose(struct host *host, const struct config *c)
{
	bool has_key = c->key_file[0] != '\0';

	host->naddresses = 0;
	for (size_t i = 0; has_key && i < host->interfaces->usable; i++) {
		host_add(host, host->interfaces->items[i].text);
	}
	host->alone = has_key && host->naddresses == 0;
	if (host->naddresses > 0) {
		return;
	}
	/* Told to nobody but daemons of this host. */
	for (size_t i = 0; i < c->listen.count; i++) {
		host_add(host, c->listen.items[i]);
	}
	if (host->naddresses == 0) {
		host_add(host, "127.0.0.1");
	}
}

static void host_log(const struct host *host)
{
	char text[1024];

	if (host->alone) {
		interfaces_describe(host->interfaces, text, sizeof(text));
		log_warn("no address of this host can be told to others, so that it works alone "
			 "until there is one: %s; see keys interfaces and listen",
			 text);
		return;
	}
	for (size_t i = 0; i < host->naddresses; i++) {
		log_debug("other hosts are told: %s", host->addresses[i]);
	}
}

/* See host.h. */
int host_init(struct host *host, const struct config *c)
{
	int r;

	if (gethostname(host->name, sizeof(host->name) - 1) < 0 || host->name[0] == '\0') {
		snprintf(host->name, sizeof(host->name), "localhost");
	}
	if (getrandom(host->id, sizeof(host->id), 0) != sizeof(host->id)) {
		return err_origin(-errno);
	}
	r = interfaces_new(&c->interfaces, &c->listen, &host->interfaces);
	if (r < 0) {
		return err_trace(r);
	}
	host_choose(host, c);
	host_log(host);
	return 0;
}

/* See host.h. */
void host_deinit(struct host *host)
{
	host->interfaces = interfaces_free(host->interfaces);
}

static bool host_same(const struct host *a, const struct host *b)
{
	bool same = a->naddresses == b->naddresses && a->alone == b->alone;

	for (size_t i = 0; same && i < a->naddresses; i++) {
		same = strcmp(a->text[i], b->text[i]) == 0;
	}
	return same;
}

/* See host.h. */
void host_refresh(struct host *host, const struct config *c, struct jobs *jobs, struct peers *peers)
{
	const struct host before = *host;
	int r;

	r = interfaces_refresh(host->interfaces, &c->interfaces, &c->listen);
	if (r < 0) {
		log_error("cannot read the interfaces, their addresses are kept: %s", strerror(-r));
		return;
	}
	host_choose(host, c);
	if (host_same(host, &before)) {
		return;
	}
	r = jobs_set_addresses(jobs, host->addresses, host->naddresses);
	if (r == 0) {
		r = peers_set_addresses(peers, host->addresses, host->naddresses);
	}
	if (r < 0) {
		log_error("other hosts are told the old addresses of this one: %s", strerror(-r));
		return;
	}
	log_info("the addresses of this host have changed: other hosts are told %zu, the first "
		 "is %s",
		 host->alone ? 0 : host->naddresses, host->addresses[0]);
	host_log(host);
}
