/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Communicators and links: who goes on when a link comes up, who fails when one is lost
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#include <inttypes.h>
#include <stdio.h>

#include "job/comm.h"

/* Refusing may remove communicators: each round takes one that has not been looked at. */
static struct communicator *communicators_linking(struct jobs *jobs, const struct hostlink *l)
{
	size_t iter = 0;
	struct communicator *c;

	while ((c = hashmap_next(&jobs->comms, &iter)) != NULL) {
		for (uint32_t i = 0; c->state == COMMUNICATOR_LINKING && i < c->nnear; i++) {
			if (c->links[c->near[i]] == l) {
				return c;
			}
		}
	}
	return NULL;
}

void communicators_link_up(struct jobs *jobs, struct hostlink *l)
{
	struct communicator *c;
	size_t iter = 0;

	if (peer_is_visit(l->peer)) {
		return;
	}
	if (!hostlink_is_up(l)) {
		while ((c = communicators_linking(jobs, l)) != NULL) {
			communicator_fail(c, COMMUNICATOR_TELL, STATUS_UNREACHABLE,
					  "a host's link came up without data connections");
		}
		return;
	}
	while ((c = hashmap_next(&jobs->comms, &iter)) != NULL) {
		if (c->state == COMMUNICATOR_LINKING && !communicator_link_check(c)) {
			iter = 0; /* the map may have changed */
		}
	}
}

static void communicator_host_text(const struct communicator *c, uint32_t host, char *buf,
				   size_t size)
{
	const uint32_t *ranks = &c->layout->by_host[c->layout->host_first[host]];
	uint32_t n = coll_nlocal(c->layout, host);

	if (n == 1) {
		snprintf(buf, size, "host %s (rank %" PRIu32 ")", c->plan->hosts[host]->name,
			 ranks[0]);
	} else if (ranks[n - 1] - ranks[0] == n - 1) {
		snprintf(buf, size, "host %s (ranks %" PRIu32 " to %" PRIu32 ")",
			 c->plan->hosts[host]->name, ranks[0], ranks[n - 1]);
	} else {
		snprintf(buf, size, "host %s (%" PRIu32 " ranks, %" PRIu32 " the first of them)",
			 c->plan->hosts[host]->name, n, ranks[0]);
	}
}

/* Return: it needs the host still. */
static bool communicator_needs(const struct communicator *c, uint32_t host)
{
	for (uint32_t r = c->layout->host_first[host]; r < c->layout->host_first[host + 1]; r++) {
		if (!c->gone[c->layout->by_host[r]]) {
			return true;
		}
	}
	return false;
}

/* Return: true when something was done, so that the map may have changed. */
static bool communicator_link_down(struct communicator *c, struct hostlink *l, enum status status,
				   const char *reason)
{
	char host[256], text[LIMIT_ERROR_TEXT];
	bool used = c->root == l;

	if (c->root == l) {
		c->root = NULL;
		if (c->status == STATUS_OK) {
			communicator_fail(c, COMMUNICATOR_TELL, status, reason);
			return true;
		}
	}
	for (uint32_t i = 0; i < c->nnear; i++) {
		uint32_t h = c->near[i];

		if (c->links[h] != l) {
			continue;
		}
		used = true;
		c->links[h] = NULL;
		if (c->status != STATUS_OK || !communicator_needs(c, h)) {
			continue;
		}
		communicator_host_text(c, h, host, sizeof(host));
		snprintf(text, sizeof(text), "%s %s: %s", host,
			 l->reached ? "is lost" : "has no link to this host", reason);
		/* A host that stops in order is as lost to us as one that dies. */
		communicator_fail(c, COMMUNICATOR_TELL,
				  c->state == COMMUNICATOR_READY ? STATUS_PEER_DIED : status, text);
		return true;
	}
	return used;
}

void communicators_link_down(struct jobs *jobs, struct hostlink *l, enum status status,
			     const char *reason)
{
	struct communicator *c;
	size_t iter = 0;

	while ((c = hashmap_next(&jobs->comms, &iter)) != NULL) {
		if (communicator_link_down(c, l, status, reason)) {
			iter = 0;
		}
	}
}
