/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fake network: many hosts' job layers in one process
 *
 * Stands in for job/peers.h and engine/engine.h: links are queues in memory, the engine only
 * answers. What happens next is drawn from a seed, in order on each link and from each engine, so a
 * failure is found again by its seed. A host that is killed is lost for the others and forgets
 * everything.
 *
 * Thread: the test's      Owns: hosts      Locks: none
 */
#ifndef ROCECOMM_FAKE_NET_H
#define ROCECOMM_FAKE_NET_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "config/config.h"
#include "job/comm.h"
#include "job/jobs.h"
#include "job/member.h"

#define FAKE_HOSTS 12
#define FAKE_RANKS 64

struct fake_net;
struct fake_host;

enum fake_rank_state {
	FAKE_IDLE = 0,
	FAKE_JOINING,
	FAKE_READY,
	FAKE_REFUSED,
	FAKE_LEAVING,
	FAKE_LEFT,
};

/* What a client would be. */
struct fake_rank {
	struct member m;
	struct fake_host *host;
	enum fake_rank_state state;
	enum status status; /* of the refusal */
	char text[LIMIT_ERROR_TEXT];
};

struct fake_net *fake_net_new(unsigned int hosts, uint64_t seed);
/* Few count as many: communicators of more than @mesh hosts are sparse, all joins are visits. */
struct fake_net *fake_net_new_wide(unsigned int hosts, uint64_t seed, uint32_t mesh,
				   uint32_t fanout);
/* All ranks have left. */
struct fake_net *fake_net_free(struct fake_net *net);
uv_loop_t *fake_loop(struct fake_net *net);
struct engine *fake_engine(struct fake_net *net, unsigned int host);
struct peers *fake_peers(struct fake_net *net, unsigned int host);
/* A message arrives at @host as if @from had sent it; their link must be up. */
void fake_inject(struct fake_net *net, unsigned int host, unsigned int from, uint16_t type,
		 const uint8_t *body, size_t size);
struct jobs *fake_jobs(struct fake_net *net, unsigned int host);
struct config *fake_config(struct fake_net *net);
/* Nobody reaches it any more. */
void fake_unplug(struct fake_net *net, unsigned int host);
/* It dies: its ranks are gone without a word, the others notice. */
void fake_kill(struct fake_net *net, unsigned int host);
bool fake_alive(const struct fake_net *net, unsigned int host);
uint64_t fake_random(struct fake_net *net, uint64_t below);

/* Lets one thing happen. Return: false when nothing waits. */
bool fake_step(struct fake_net *net);
/* Until nothing waits. */
void fake_run(struct fake_net *net);
/* Until nothing waits and @ms have passed. */
void fake_run_ms(struct fake_net *net, unsigned int ms);

/* A rank of the host from now on; sets its host. Return: how many were there before. */
unsigned int fake_host_enter(struct fake_net *net, unsigned int host, struct fake_rank *r);
unsigned int fake_host_index(const struct fake_host *h);
struct jobs *fake_host_jobs(const struct fake_host *h);

/* ---- fake_rank.c -------------------------------------------------------------------------- */

void fake_join(struct fake_net *net, struct fake_rank *r, unsigned int host,
	       const uint8_t id[LIMIT_UNIQUE_ID], uint32_t rank, uint32_t size);
/* @root: host; ranks of all hosts meet there under @name */
void fake_join_env(struct fake_net *net, struct fake_rank *r, unsigned int host, unsigned int root,
		   const char *name, uint32_t rank, uint32_t size);
/* Return: a negative colour joined none. */
bool fake_split(struct fake_net *net, struct fake_rank *r, struct fake_rank *parent, int32_t color,
		int32_t key);
void fake_leave(struct fake_rank *r, const char *died);
/* Posts so many collectives, of which so many are completed. */
void fake_post(struct fake_rank *r, uint64_t posted, uint64_t completed);
/* What the engine was told of its communicator; STATUS_OK: no failure. */
enum status fake_failed(const struct fake_rank *r);

#endif
