/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Bootstrap: implementation
 *
 * Thread: control      Owns: see bootstrap.h      Locks: none
 */
#include "job/bootstrap.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "job/comm.h"
#include "job/formation.h"
#include "job/hostlink.h"
#include "job/member.h"
#include "job/roster.h"
#include "proto/base.h"
#include "proto/msg.h"
#include "util/log.h"

#define MISSING_NAMED 8 /* ranks that a sentence names one by one */

struct rendezvous_host {
	struct hostlink *link; /* NULL: this host, or its visit is over */
	bool own;
	Rocecomm__Peer__Host *info;
	uint32_t nranks;
	uint32_t index; /* in the communicator, while its plan is made */
};

struct rendezvous_rank {
	uint32_t rank;
	uint32_t host; /* in rendezvous.hosts */
	uint32_t pid;
	char client[LIMIT_NAME];
};

struct rendezvous {
	struct jobs *jobs;
	uint8_t joined[UID_SIZE];
	bool env;
	uint32_t size;
	char name[LIMIT_NAME];
	uint32_t join_timeout_ms, arrival_timeout_ms, transfer_timeout_ms;
	uint64_t deadline;
	struct hashmap ranks; /* struct rendezvous_rank by number */
	struct rendezvous_host *hosts;
	uint32_t nhosts, hosts_room;
	struct hashmap by_id; /* index + 1 in hosts, by host_id */
	char note[256];	      /* something odd that the time-out's sentence mentions */
};

static struct rendezvous *rendezvous_free(struct rendezvous *v)
{
	struct rendezvous_rank *rank;
	size_t iter = 0;

	if (!v) {
		return NULL;
	}
	if (hashmap_get16(&v->jobs->rendezvous, v->joined) == v) {
		hashmap_remove16(&v->jobs->rendezvous, v->joined);
	}
	while ((rank = hashmap_next(&v->ranks, &iter)) != NULL) {
		free(rank);
	}
	hashmap_deinit(&v->ranks);
	hashmap_deinit(&v->by_id);
	for (uint32_t h = 0; h < v->nhosts; h++) {
		rocecomm__peer__host__free_unpacked(v->hosts[h].info, NULL);
	}
	free(v->hosts);
	free(v);
	return NULL;
}

static int rendezvous_new(struct jobs *jobs, const Rocecomm__Peer__Join *join,
			  struct rendezvous **ret)
{
	struct rendezvous *v = calloc(1, sizeof(*v));
	int r;

	if (!v) {
		return err_origin(-ENOMEM);
	}
	v->jobs = jobs;
	v->env = join->env;
	v->size = join->size;
	v->join_timeout_ms = join->join_timeout_ms;
	v->arrival_timeout_ms = join->arrival_timeout_ms;
	v->transfer_timeout_ms = join->transfer_timeout_ms;
	v->deadline = UINT64_MAX;
	memcpy(v->joined, join->uid.data, UID_SIZE);
	snprintf(v->name, sizeof(v->name), "%s", join->name);
	hashmap_init(&v->ranks);
	hashmap_init(&v->by_id);
	r = hashmap_put16(&jobs->rendezvous, v->joined, v);
	if (r != 0) {
		rendezvous_free(v);
		return err_fold(r);
	}
	*ret = v;
	return 0;
}

/* ---- refusing ----------------------------------------------------------------------------- */

static void refuse_host(struct jobs *jobs, struct hostlink *l, const uint8_t joined[UID_SIZE],
			int32_t rank, enum status status, const char *text)
{
	Rocecomm__Peer__CommFail msg = ROCECOMM__PEER__COMM_FAIL__INIT;

	if (!l) {
		members_refuse(jobs, joined, rank, status, text);
		return;
	}
	msg.uid.data = (uint8_t *)(uintptr_t)joined;
	msg.uid.len = UID_SIZE;
	msg.status = status;
	msg.text = (char *)(uintptr_t)text;
	msg.rank = rank;
	hostlink_send(l, PEER_MSG_COMM_FAIL, &msg.base);
}

/* The link to a host that has joined; another visit, if the first is over. */
static struct hostlink *rendezvous_link(const struct rendezvous *v,
					const struct rendezvous_host *host)
{
	struct hostlink *l = host->link;

	if (!l && !host->own && hostlink_connect(v->jobs, host->info, true, &l) < 0) {
		return NULL;
	}
	return l;
}

/* Tells all that have joined; @v is gone afterwards. */
static void rendezvous_fail(struct rendezvous *v, enum status status, const char *text)
{
	struct jobs *jobs = v->jobs;
	uint8_t joined[UID_SIZE];
	bool here = false;

	log_info("communicator %s is not formed: %s", v->name, text);
	memcpy(joined, v->joined, UID_SIZE);
	for (uint32_t h = 0; h < v->nhosts; h++) {
		struct hostlink *l = rendezvous_link(v, &v->hosts[h]);

		here = here || v->hosts[h].own;
		if (l) {
			refuse_host(jobs, l, joined, -1, status, text);
		}
	}
	rendezvous_free(v);
	jobs_soon(jobs); /* ends visits */
	if (here) {
		refuse_host(jobs, NULL, joined, -1, status, text);
	}
}

static void rank_text(const struct rendezvous *v, const struct rendezvous_rank *rank, char *buf,
		      size_t size)
{
	snprintf(buf, size, "rank %" PRIu32 " (host %s, pid %" PRIu32 "%s%s)", rank->rank,
		 v->hosts[rank->host].info->name, rank->pid, rank->client[0] ? ", " : "",
		 rank->client);
}

/* "3 of 8 ranks are missing: 2, 5, 7" */
static void missing_text(const struct rendezvous *v, char *buf, size_t size)
{
	uint32_t missing = v->size - (uint32_t)hashmap_count(&v->ranks);
	uint32_t named = 0;
	int n;

	n = snprintf(buf, size, "%" PRIu32 " of %" PRIu32 " ranks %s missing: ", missing, v->size,
		     missing == 1 ? "is" : "are");
	for (uint32_t i = 0; i < v->size && named < MISSING_NAMED; i++) {
		if (!hashmap_get(&v->ranks, i) && n > 0 && (size_t)n < size) {
			n += snprintf(buf + n, size - (size_t)n, "%s%" PRIu32, named ? ", " : "",
				      i);
			named++;
		}
	}
	if (missing > named && n > 0 && (size_t)n < size) {
		snprintf(buf + n, size - (size_t)n, " and %" PRIu32 " more", missing - named);
	}
}

/* ---- joining ------------------------------------------------------------------------------ */

/* Return: NULL, or what is wrong with the message. */
static const char *join_check(const struct hostlink *l, const Rocecomm__Peer__Join *join)
{
	if (join->uid.len != UID_SIZE) {
		return "its uid has not 16 bytes";
	}
	if (!join->rank || !join->host) {
		return "it names no rank or no host";
	}
	if (join->size < 1 || join->size > LIMIT_COMM_RANKS || join->rank->rank >= join->size) {
		return "its rank or size is out of range";
	}
	if (strlen(join->name) >= LIMIT_NAME || strlen(join->rank->client) >= LIMIT_NAME ||
	    strlen(join->host->name) >= LIMIT_NAME) {
		return "a name is too long";
	}
	if (join->host->host_id.len != PEER_HOST_ID || join->host->port > UINT16_MAX ||
	    join->host->n_addresses > PEER_MAX_ADDRESSES) {
		return "its host is out of range";
	}
	if (l && memcmp(join->host->host_id.data, peer_host_id(l->peer), PEER_HOST_ID) != 0) {
		return "it is for another host";
	}
	if (join->n_more >= LIMIT_LOCAL_RANKS) {
		return "it has more ranks than a host may have";
	}
	for (size_t i = 0; i < join->n_more; i++) {
		if (join->more[i]->rank >= join->size ||
		    strlen(join->more[i]->client) >= LIMIT_NAME) {
			return "a rank or its name is out of range";
		}
	}
	return NULL;
}

/* A communicator that ranks with these names have formed, and this rank is in it still. */
static bool env_taken(struct jobs *jobs, const Rocecomm__Peer__Join *join)
{
	size_t iter = 0;
	const struct communicator *c;

	while ((c = hashmap_next(&jobs->comms, &iter)) != NULL) {
		if (memcmp(c->joined, join->uid.data, UID_SIZE) == 0 && c->status == STATUS_OK &&
		    !c->doom.on && join->rank->rank < c->size && !c->gone[join->rank->rank]) {
			return true;
		}
	}
	return false;
}

/* The id is used up. Return: why, or NULL. */
static const char *join_used(struct jobs *jobs, const Rocecomm__Peer__Join *join)
{
	if (!join->env && jobs_id_used(jobs, join->uid.data)) {
		return "this unique id has formed a communicator already: every communicator needs "
		       "an id of its own from roce_get_unique_id()";
	}
	if (join->env && (formation_pending(jobs, join->uid.data) || env_taken(jobs, join))) {
		return "a communicator of the same name (job, port and number of calls) has this "
		       "rank already: two processes claim one rank, or two jobs share a port and "
		       "a run id";
	}
	return NULL;
}

static int host_add(struct rendezvous *v, const Rocecomm__Peer__Host *info, uint32_t *ret)
{
	struct rendezvous_host host = {.info = NULL};
	int r;

	if (v->nhosts == v->hosts_room) {
		uint32_t room = 2 * v->hosts_room + 4;
		struct rendezvous_host *hosts = realloc(v->hosts, room * sizeof(*hosts));

		if (!hosts) {
			return err_origin(-ENOMEM);
		}
		v->hosts = hosts;
		v->hosts_room = room;
	}
	host.info = roster_host_copy(info);
	if (!host.info) {
		return err_origin(-ENOMEM);
	}
	r = hashmap_put16(&v->by_id, info->host_id.data, (void *)(uintptr_t)(v->nhosts + 1));
	if (r != 0) {
		rocecomm__peer__host__free_unpacked(host.info, NULL);
		return err_fold(r);
	}
	v->hosts[v->nhosts] = host;
	*ret = v->nhosts++;
	return 0;
}

static int host_find(struct rendezvous *v, struct hostlink *l, const Rocecomm__Peer__Host *info,
		     uint32_t *ret)
{
	size_t index = (size_t)(uintptr_t)hashmap_get16(&v->by_id, info->host_id.data);
	int r;

	if (index > 0) {
		*ret = (uint32_t)index - 1;
	} else {
		r = host_add(v, info, ret);
		if (r < 0) {
			return err_trace(r);
		}
	}
	v->hosts[*ret].own = !l;
	v->hosts[*ret].link = l;
	return 0;
}

static int rank_add(struct rendezvous *v, struct hostlink *l, const Rocecomm__Peer__Join *join)
{
	struct rendezvous_rank *rank = calloc(1, sizeof(*rank));
	int r;

	if (!rank) {
		return err_origin(-ENOMEM);
	}
	rank->rank = join->rank->rank;
	rank->pid = join->rank->pid;
	snprintf(rank->client, sizeof(rank->client), "%s", join->rank->client);
	r = host_find(v, l, join->host, &rank->host);
	if (r == 0) {
		r = hashmap_put(&v->ranks, rank->rank, rank);
	}
	if (r != 0) {
		free(rank);
		return err_fold(r);
	}
	v->hosts[rank->host].nranks++;
	return 0;
}

static void rendezvous_complete(struct rendezvous *v);

/* The list as it is and one more rank. Return: false: all were refused. */
static bool rendezvous_add(struct rendezvous *v, struct hostlink *l,
			   const Rocecomm__Peer__Join *join)
{
	struct jobs *jobs = v->jobs;
	const struct rendezvous_rank *other = hashmap_get(&v->ranks, join->rank->rank);
	char text[LIMIT_ERROR_TEXT], who[256];
	uint64_t deadline = jobs_now(jobs) + join->join_timeout_ms;

	if (other) {
		rank_text(v, other, who, sizeof(who));
		snprintf(text, sizeof(text),
			 "%s has joined already: host %s, pid %" PRIu32 " claims the same rank",
			 who, join->host->name, join->rank->pid);
		snprintf(v->note, sizeof(v->note),
			 "; rank %" PRIu32 " was claimed twice, the second time by host %s, pid "
			 "%" PRIu32,
			 join->rank->rank, join->host->name, join->rank->pid);
		refuse_host(jobs, l, v->joined, (int32_t)join->rank->rank, STATUS_EXISTS, text);
		return true;
	}
	if (rank_add(v, l, join) < 0) {
		refuse_host(jobs, l, v->joined, (int32_t)join->rank->rank, STATUS_NO_MEMORY,
			    "the root daemon has no memory");
		return true;
	}
	other = hashmap_get(&v->ranks, join->rank->rank);
	if (v->hosts[other->host].nranks > LIMIT_LOCAL_RANKS) {
		snprintf(text, sizeof(text),
			 "host %s has more than %d ranks of one communicator, which is the limit: "
			 "use more hosts, or fewer ranks a host",
			 v->hosts[other->host].info->name, LIMIT_LOCAL_RANKS);
		rendezvous_fail(v, STATUS_UNSUPPORTED, text);
		return false;
	}
	if (deadline < v->deadline) {
		v->deadline = deadline;
		v->join_timeout_ms = join->join_timeout_ms;
	}
	if (hashmap_count(&v->ranks) == v->size) {
		rendezvous_complete(v);
		return true;
	}
	jobs_tick(jobs);
	return true;
}

/* One rank of those that a message is for. Return: false: all of them were refused. */
static bool rendezvous_join_rank(struct jobs *jobs, struct hostlink *l,
				 const Rocecomm__Peer__Join *join)
{
	struct rendezvous *v = hashmap_get16(&jobs->rendezvous, join->uid.data);
	char text[LIMIT_ERROR_TEXT], who[256];
	const char *why = v && !join->env ? NULL : join_used(jobs, join);
	size_t iter = 0;

	if (why) {
		refuse_host(jobs, l, join->uid.data, (int32_t)join->rank->rank, STATUS_EXISTS, why);
		return true;
	}
	if (!v && rendezvous_new(jobs, join, &v) < 0) {
		refuse_host(jobs, l, join->uid.data, -1, STATUS_NO_MEMORY,
			    "the root daemon has no memory");
		return false;
	}
	if (v->size != join->size) {
		rank_text(v, hashmap_next(&v->ranks, &iter), who, sizeof(who));
		snprintf(text, sizeof(text),
			 "ranks disagree on the size: rank %" PRIu32 " (host %s, pid %" PRIu32
			 ") says %" PRIu32 ", %s says %" PRIu32,
			 join->rank->rank, join->host->name, join->rank->pid, join->size, who,
			 v->size);
		refuse_host(jobs, l, v->joined, -1, STATUS_MISMATCH, text);
		rendezvous_fail(v, STATUS_MISMATCH, text);
		return false;
	}
	return rendezvous_add(v, l, join);
}

/* See bootstrap.h. */
void rendezvous_join(struct jobs *jobs, struct hostlink *l, const Rocecomm__Peer__Join *join)
{
	const char *why = join_check(l, join);
	Rocecomm__Peer__Join one = *join;
	struct rendezvous *v;
	bool more = true;

	if (why) {
		log_warn("host %s sent a Join that is dropped: %s",
			 l ? peer_name(l->peer) : jobs_host(jobs), why);
		return;
	}
	for (size_t i = 0; more && i <= join->n_more; i++) {
		one.rank = i == 0 ? join->rank : join->more[i - 1];
		more = rendezvous_join_rank(jobs, l, &one);
	}
	/* A list that nobody is on is none. */
	v = hashmap_get16(&jobs->rendezvous, join->uid.data);
	if (v && hashmap_count(&v->ranks) == 0) {
		rendezvous_free(v);
	}
}

/* The ranks of a visitor are on the list, or were refused: it need not stay. */
static void rendezvous_taken(struct jobs *jobs, struct hostlink *l,
			     const Rocecomm__Peer__Join *join)
{
	Rocecomm__Peer__JoinTaken taken = ROCECOMM__PEER__JOIN_TAKEN__INIT;
	const struct rendezvous *v;
	size_t index;

	if (join->uid.len != UID_SIZE) {
		return;
	}
	v = hashmap_get16(&jobs->rendezvous, join->uid.data);
	index = v ? (size_t)(uintptr_t)hashmap_get16(&v->by_id, peer_host_id(l->peer)) : 0;
	if (index > 0) {
		v->hosts[index - 1].link = NULL;
	}
	taken.uid = join->uid;
	hostlink_send(l, PEER_MSG_JOIN_TAKEN, &taken.base);
}

bool rendezvous_on_join(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *msg)
{
	const Rocecomm__Peer__Join *join = (const Rocecomm__Peer__Join *)msg;

	rendezvous_join(jobs, l, join);
	if (peer_is_visit(l->peer)) {
		rendezvous_taken(jobs, l, join);
	}
	return false;
}

/* ---- all are there ------------------------------------------------------------------------ */

/* Hosts in the order of their first ranks. */
static void plan_fill(struct rendezvous *v, struct roster *r)
{
	for (uint32_t h = 0; h < v->nhosts; h++) {
		v->hosts[h].index = UINT32_MAX;
	}
	for (uint32_t i = 0; i < v->size; i++) {
		const struct rendezvous_rank *rank = hashmap_get(&v->ranks, i);
		struct rendezvous_host *host = &v->hosts[rank->host];

		if (host->index == UINT32_MAX) {
			host->index = roster_add_host(r, host->info);
		}
		roster_add_rank(r, host->index, rank->pid, rank->client);
	}
}

static int plan_start(struct rendezvous *v, char *text, size_t size)
{
	struct roster r;
	int ret = STATUS_NO_MEMORY;

	snprintf(text, size, "the root daemon has no memory");
	if (roster_init(&r, v->size, v->nhosts) == 0) {
		plan_fill(v, &r);
		r.plan.joined.data = v->joined;
		r.plan.joined.len = UID_SIZE;
		r.plan.name = v->name;
		r.plan.arrival_timeout_ms = v->arrival_timeout_ms;
		r.plan.transfer_timeout_ms = v->transfer_timeout_ms;
		ret = formation_start(v->jobs, &r.plan, text, size);
	}
	roster_deinit(&r);
	return ret;
}

static void rendezvous_complete(struct rendezvous *v)
{
	char text[LIMIT_ERROR_TEXT];
	int r = plan_start(v, text, sizeof(text));

	if (r != 0) {
		rendezvous_fail(v, (enum status)r, text);
		return;
	}
	if (!v->env) {
		jobs_id_use(v->jobs, v->joined);
	}
	rendezvous_free(v);
}

/* ---- and when not ------------------------------------------------------------------------- */

void rendezvous_gone(struct jobs *jobs, const uint8_t joined[UID_SIZE], uint32_t rank,
		     enum status status, const char *text)
{
	struct rendezvous *v = hashmap_get16(&jobs->rendezvous, joined);

	if (v && hashmap_get(&v->ranks, rank)) {
		rendezvous_fail(v, status, text);
	}
}

/* One that @pick chooses, or NULL. */
static struct rendezvous *rendezvous_of(struct jobs *jobs, const struct hostlink *l, uint64_t now)
{
	size_t iter = 0;
	struct rendezvous *v;

	while ((v = hashmap_next(&jobs->rendezvous, &iter)) != NULL) {
		if (!l && v->deadline <= now) {
			return v;
		}
		for (uint32_t h = 0; l && h < v->nhosts; h++) {
			if (v->hosts[h].link == l) {
				return v;
			}
		}
	}
	return NULL;
}

void rendezvous_link_down(struct jobs *jobs, struct hostlink *l, const char *reason)
{
	char text[LIMIT_ERROR_TEXT];
	struct rendezvous *v;

	if (peer_is_visit(l->peer)) {
		return; /* it was taken, or never came */
	}
	while ((v = rendezvous_of(jobs, l, 0)) != NULL) {
		uint32_t h = 0;

		while (v->hosts[h].link != l) {
			h++;
		}
		snprintf(text, sizeof(text),
			 "host %s, from which %" PRIu32 " of %" PRIu32
			 " ranks had joined, is lost: "
			 "%s",
			 v->hosts[h].info->name, v->hosts[h].nranks, v->size, reason);
		/* It cannot be told; the entry would stand for this host otherwise. */
		rocecomm__peer__host__free_unpacked(v->hosts[h].info, NULL);
		v->hosts[h] = v->hosts[--v->nhosts];
		rendezvous_fail(v, STATUS_PEER_DIED, text);
	}
}

/* Has a host tried to come, and was not let in? It may be the one that is missing. */
static void refusal_text(const struct rendezvous *v, uint64_t now, char *buf, size_t size)
{
	const struct peers_refusal *refusal = peers_last_refusal(v->jobs->peers);

	buf[0] = '\0';
	/* Ranks start about together: the refused one perhaps before the first that joined. */
	if (refusal && refusal->at + UINT64_C(2) * v->join_timeout_ms >= now) {
		snprintf(buf, size, "; a host at %s was refused %" PRIu64 " s ago: %s",
			 refusal->address, (now - MIN(refusal->at, now)) / 1000, refusal->cause);
	}
}

void rendezvous_tick(struct jobs *jobs, uint64_t now)
{
	char text[LIMIT_ERROR_TEXT], missing[256], refused[PEERS_CAUSE + 128];
	struct rendezvous *v;

	while ((v = rendezvous_of(jobs, NULL, now)) != NULL) {
		missing_text(v, missing, sizeof(missing));
		refusal_text(v, now, refused, sizeof(refused));
		snprintf(text, sizeof(text),
			 "communicator %s was not formed within %" PRIu32 " ms: %s%s; the others "
			 "have joined at host %s%s%s",
			 v->name, v->join_timeout_ms, missing, v->note, jobs_host(jobs),
			 v->env ? ", which ranks elsewhere find by MASTER_ADDR or ROCECOMM_ROOT"
				: "",
			 refused);
		rendezvous_fail(v, STATUS_TIMEOUT, text);
	}
	if (hashmap_count(&jobs->rendezvous) > 0) {
		jobs_tick(jobs);
	}
}

void rendezvous_shutdown(struct jobs *jobs, enum status status, const char *reason)
{
	struct rendezvous *v;

	while ((v = hashmap_any(&jobs->rendezvous)) != NULL) {
		rendezvous_fail(v, status, reason);
	}
}

void rendezvous_drop_all(struct jobs *jobs)
{
	struct rendezvous *v;

	while ((v = hashmap_any(&jobs->rendezvous)) != NULL) {
		rendezvous_free(v);
	}
}
