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
#include "job/rails.h"
#include "job/roster.h"
#include "util/clock.h"

void communicator_rank_text(const struct communicator *c, uint32_t rank, char *buf, size_t size)
{
	const char *client = roster_client(c->plan, rank);

	snprintf(buf, size, "rank %" PRIu32 " (host %s, pid %" PRIu32 "%s%s)", rank,
		 c->plan->hosts[c->plan->host_of[rank]]->name, c->plan->pids[rank],
		 client[0] ? ", " : "", client);
}

/* "rdma", "tcp (why)" or both, by what the links use now. Return: as snprintf(). */
static int path_head(const struct communicator *c, char *buf, size_t size)
{
	uint32_t rdma = 0, tcp = 0;
	char why[256] = "";

	for (uint32_t i = 0; i < c->nnear; i++) {
		const struct hostlink *l = c->links[c->near[i]];
		bool uses;

		if (l) {
			uses = rails_link_uses(l, tcp ? NULL : why, sizeof(why));
			rdma += uses;
			tcp += !uses;
		}
	}
	if (tcp == 0) {
		return snprintf(buf, size, "rdma (RoCE v2): %" PRIu32 " hosts, ", c->nhosts);
	}
	return snprintf(buf, size, "%stcp (%s): %" PRIu32 " hosts, ", rdma ? "rdma and " : "", why,
			c->nhosts);
}

void communicator_path_text(const struct communicator *c, char *buf, size_t size)
{
	uint32_t shown = 0;
	char rails[160];
	int n;

	if (c->nhosts == 1) {
		snprintf(buf, size, "shared memory: all ranks are on host %s",
			 c->plan->hosts[0]->name);
		return;
	}
	n = path_head(c, buf, size);
	for (uint32_t i = 0; i < c->nnear && n > 0 && (size_t)n < size; i++) {
		uint32_t h = c->near[i];

		if (!c->links[h] || shown == 4) {
			continue;
		}
		rails_link_text(c->links[h], rails, sizeof(rails));
		n += snprintf(buf + n, size - (size_t)n, "%s%s at %s", shown ? ", " : "",
			      c->plan->hosts[h]->name,
			      rails[0] ? rails : peer_address(c->links[h]->peer));
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
