/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Communicators in words: ranks with host and pid, the path in use, how long an operation waits
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#include <inttypes.h>
#include <stdio.h>

#include "job/comm.h"
#include "job/roster.h"
#include "util/clock.h"

void communicator_rank_text(const struct communicator *c, uint32_t rank, char *buf, size_t size)
{
	const char *client = roster_client(c->plan, rank);

	snprintf(buf, size, "rank %" PRIu32 " (host %s, pid %" PRIu32 "%s%s)", rank,
		 c->plan->hosts[c->plan->host_of[rank]]->name, c->plan->pids[rank],
		 client[0] ? ", " : "", client);
}

void communicator_path_text(const struct communicator *c, char *buf, size_t size)
{
	uint32_t shown = 0;
	int n;

	if (c->nhosts == 1) {
		snprintf(buf, size, "shared memory: all ranks are on host %s",
			 c->plan->hosts[0]->name);
		return;
	}
	n = snprintf(buf, size,
		     "tcp (no other transport between hosts is built in): %" PRIu32 " hosts, ",
		     c->nhosts);
	for (uint32_t i = 0; i < c->nnear && n > 0 && (size_t)n < size; i++) {
		uint32_t h = c->near[i];

		if (!c->links[h] || shown == 4) {
			continue;
		}
		n += snprintf(buf + n, size - (size_t)n, "%s%s at %s", shown ? ", " : "",
			      c->plan->hosts[h]->name, peer_address(c->links[h]->peer));
		shown++;
	}
	if (shown + 1 < c->nhosts && n > 0 && (size_t)n < size) {
		snprintf(buf + n, size - (size_t)n, " and %" PRIu32 " more", c->nhosts - 1 - shown);
	}
}

bool communicator_waits(const struct communicator *c, uint64_t *ret_ms)
{
	uint64_t since = counter_get(&c->view->wait_since_ns);

	if (since == 0 || c->state != COMMUNICATOR_READY) {
		return false;
	}
	*ret_ms = clock_elapsed(clock_monotonic(), since) / CLOCK_NS_PER_MS;
	return true;
}

const char *communicator_host_state(const struct communicator *c, uint32_t host)
{
	bool near = false;

	for (uint32_t i = 0; i < c->nnear; i++) {
		near = near || c->near[i] == host;
	}
	return host == c->host ? "self" : c->links[host] ? "up" : near ? "lost" : "far";
}
