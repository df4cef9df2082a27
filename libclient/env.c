/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Environment: implementation
 *
 * The rendezvous name must be the same on all ranks of one start of one job and differ from all
 * others: launcher, job or run id, MASTER_ADDR and port, and a count of the calls in this process,
 * which all ranks make in the same order.
 *
 * Names are resolved here, in the caller's thread and with its resolver settings; the daemon
 * never looks a name up.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "libclient/env.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "libclient/client.h"
#include "libclient/comm.h"
#include "libclient/error.h"
#include "libclient/roceclient.h"
#include "proto/base.h"
#include "rocecomm.pb-c.h"

/* A launcher: where it puts things. The first whose rank and size are both set is taken. */
struct launcher {
	const char *name;
	const char *rank;
	const char *size[3];  /* the first that is set */
	const char *local[2]; /* number of ranks on this host */
	const char *node;     /* index of this host */
	const char *nodes[2]; /* number of hosts; the first that is set */
	const char *job[4];   /* all that are set go into the name */
};

static const struct launcher launchers[] = {
	{
		.name = "torchrun",
		.rank = "RANK",
		.size = {"WORLD_SIZE"},
		.local = {"LOCAL_WORLD_SIZE"},
		.node = "GROUP_RANK",
		.nodes = {"GROUP_WORLD_SIZE"},
		/* Not the restart count: the agents of several hosts count differently. */
		.job = {"TORCHELASTIC_RUN_ID"},
	},
	{
		.name = "openmpi",
		.rank = "OMPI_COMM_WORLD_RANK",
		.size = {"OMPI_COMM_WORLD_SIZE"},
		.local = {"OMPI_COMM_WORLD_LOCAL_SIZE"},
		.job = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID"},
	},
	{
		.name = "pmix",
		.rank = "PMIX_RANK",
		.size = {"PMIX_SIZE", "SLURM_NTASKS", "PMI_SIZE"},
		.local = {"PMIX_LOCAL_SIZE"},
		.node = "SLURM_NODEID",
		.nodes = {"SLURM_STEP_NUM_NODES", "SLURM_NNODES"},
		.job = {"PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID"},
	},
	{
		.name = "slurm",
		.rank = "SLURM_PROCID",
		.size = {"SLURM_NTASKS", "SLURM_NPROCS"},
		.node = "SLURM_NODEID",
		.nodes = {"SLURM_STEP_NUM_NODES", "SLURM_NNODES"},
		.job = {"SLURM_JOB_ID", "SLURM_STEP_ID"},
	},
};

static const char looked_for[] =
	"RANK and WORLD_SIZE (torchrun), OMPI_COMM_WORLD_RANK and _SIZE (Open MPI), PMIX_RANK and "
	"PMIX_SIZE or SLURM_NTASKS (PMIx), SLURM_PROCID and SLURM_NTASKS (Slurm)";

/* A set and non-empty variable, else NULL. */
static const char *env_text(env_get_fn get, void *ctx, const char *name)
{
	const char *value = name ? get(ctx, name) : NULL;

	return value && value[0] != '\0' ? value : NULL;
}

/* A whole decimal number. Return: false if it is none or out of range. */
static bool env_number(const char *text, long max, int *ret)
{
	char *end;
	long v;

	if (!text || text[0] < '0' || text[0] > '9') {
		return false;
	}
	errno = 0;
	v = strtol(text, &end, 10);
	if (errno != 0 || *end != '\0' || v > max) {
		return false;
	}
	*ret = (int)v;
	return true;
}

/* An optional number: -1 when it is not there or not a number. */
static int env_optional(env_get_fn get, void *ctx, const char *name)
{
	int v;

	return env_number(env_text(get, ctx, name), INT_MAX, &v) ? v : -1;
}

static const char *env_first(env_get_fn get, void *ctx, const char *const *names, size_t n,
			     const char **ret_name)
{
	for (size_t i = 0; i < n && names[i]; i++) {
		const char *value = env_text(get, ctx, names[i]);

		if (value) {
			*ret_name = names[i];
			return value;
		}
	}
	return NULL;
}

/* Splits "host", "host:port", "[v6]:port", "v6" into place->root and root_port. */
static int env_split_root(const char *text, struct env_place *place)
{
	const char *host = text, *port = NULL;
	size_t len = strlen(text);
	int number = 0;

	if (text[0] == '[') {
		const char *end = strchr(text, ']');

		host = text + 1;
		len = end ? (size_t)(end - host) : 0;
		port = end && end[1] == ':' ? end + 2 : NULL;
		if (!end || (end[1] != '\0' && end[1] != ':')) {
			len = 0;
		}
	} else if (strchr(text, ':') && strchr(text, ':') == strrchr(text, ':')) {
		port = strchr(text, ':') + 1;
		len = (size_t)(port - 1 - text);
	}
	if (len == 0 || len >= sizeof(place->root) ||
	    (port && (!env_number(port, 65535, &number) || number == 0))) {
		return error_set(ROCE_ERR_INVALID,
				 "ROCECOMM_ROOT=%s is not an address with an optional port "
				 "(10.0.0.1:7400, [fd00::1]:7400)",
				 text);
	}
	snprintf(place->root, sizeof(place->root), "%.*s", (int)len, host);
	place->root_port = (uint16_t)number;
	return 0;
}

/* FNV-1a: shortens names that would not fit, the same way on every rank. */
static uint64_t env_hash(const char *text)
{
	uint64_t h = 0xcbf29ce484222325ull;

	while (*text != '\0') {
		h = (h ^ (unsigned char)*text++) * 0x100000001b3ull;
	}
	return h;
}

static int env_name(env_get_fn get, void *ctx, const struct launcher *l, struct env_place *place)
{
	const char *addr = env_text(get, ctx, "MASTER_ADDR");
	const char *port = env_text(get, ctx, "MASTER_PORT");
	char text[2048];
	size_t at;

	at = (size_t)snprintf(text, sizeof(text), "%s:%s:%s", l->name, addr ? addr : "-",
			      port ? port : "-");
	for (size_t i = 0; i < ARRAY_SIZE(l->job) && l->job[i]; i++) {
		const char *job = env_text(get, ctx, l->job[i]);

		if (at < sizeof(text)) {
			at += (size_t)snprintf(text + at, sizeof(text) - at, ":%s",
					       job ? job : "-");
		}
	}
	if (at >= sizeof(text)) {
		return error_set(ROCE_ERR_INVALID,
				 "MASTER_ADDR, MASTER_PORT and the job's id have over %zu bytes",
				 sizeof(text));
	}
	if (at < sizeof(place->name)) {
		memcpy(place->name, text, at + 1);
	} else {
		snprintf(place->name, sizeof(place->name), "%.100s~%016llx", text,
			 (unsigned long long)env_hash(text));
	}
	return 0;
}

static const struct launcher *env_launcher(env_get_fn get, void *ctx, const char **ret_size,
					   const char **ret_size_name)
{
	for (size_t i = 0; i < ARRAY_SIZE(launchers); i++) {
		const struct launcher *l = &launchers[i];

		*ret_size = env_first(get, ctx, l->size, ARRAY_SIZE(l->size), ret_size_name);
		if (*ret_size && env_text(get, ctx, l->rank)) {
			return l;
		}
	}
	return NULL;
}

/* On how many hosts the ranks are, as far as the launcher says. */
static void env_spread(env_get_fn get, void *ctx, const struct launcher *l, struct env_place *place)
{
	const char *name;
	int local = -1, nodes = -1;

	env_number(env_first(get, ctx, l->nodes, ARRAY_SIZE(l->nodes), &name), INT_MAX, &nodes);
	env_number(env_first(get, ctx, l->local, ARRAY_SIZE(l->local), &name), INT_MAX, &local);
	place->node = env_optional(get, ctx, l->node);
	if (place->size == 1 || local == place->size || nodes == 1) {
		place->all_local = true;
	} else if ((local > 0 && local < place->size) || nodes > 1) {
		place->many_hosts = true;
	}
}

int env_parse(env_get_fn get, void *ctx, struct env_place *ret)
{
	struct env_place place = {.node = -1};
	const char *size_text, *size_name, *root, *addr;
	const struct launcher *l;
	int r = 0;

	l = env_launcher(get, ctx, &size_text, &size_name);
	if (!l) {
		return error_set(ROCE_ERR_INVALID,
				 "no rank and size in the environment; looked for %s", looked_for);
	}
	place.launcher = l->name;
	if (!env_number(size_text, LIMIT_COMM_RANKS, &place.size) || place.size == 0) {
		return error_set(ROCE_ERR_INVALID, "%s=%s is not a number of ranks in 1 .. %u",
				 size_name, size_text, LIMIT_COMM_RANKS);
	}
	if (!env_number(env_text(get, ctx, l->rank), place.size - 1, &place.rank)) {
		return error_set(ROCE_ERR_INVALID, "%s=%s is not a rank in 0 .. %d (%s=%s)",
				 l->rank, env_text(get, ctx, l->rank), place.size - 1, size_name,
				 size_text);
	}
	env_spread(get, ctx, l, &place);
	root = env_text(get, ctx, "ROCECOMM_ROOT");
	addr = env_text(get, ctx, "MASTER_ADDR");
	if (root) {
		place.root_given = true;
		r = env_split_root(root, &place);
	} else if (addr && strlen(addr) >= sizeof(place.root)) {
		r = error_set(ROCE_ERR_INVALID,
			      "MASTER_ADDR has %zu bytes, at most %zu are allowed", strlen(addr),
			      sizeof(place.root) - 1);
	} else if (addr) {
		snprintf(place.root, sizeof(place.root), "%s", addr);
	} else if (place.many_hosts) {
		r = error_set(ROCE_ERR_INVALID,
			      "%s starts ranks on several hosts, but neither MASTER_ADDR nor "
			      "ROCECOMM_ROOT says where they meet: set MASTER_ADDR to the host of "
			      "rank 0 on all ranks",
			      l->name);
	}
	if (r == 0) {
		r = env_name(get, ctx, l, &place);
	}
	if (r == 0) {
		*ret = place;
	}
	return r;
}

static bool address_is_loopback(const struct sockaddr *sa)
{
	const struct in6_addr *v6;

	if (sa->sa_family == AF_INET) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)sa;

		return ntohl(in->sin_addr.s_addr) >> 24 == 127 || in->sin_addr.s_addr == 0;
	}
	v6 = &((const struct sockaddr_in6 *)sa)->sin6_addr;
	return IN6_IS_ADDR_LOOPBACK(v6) || IN6_IS_ADDR_UNSPECIFIED(v6) ||
	       (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
}

static bool address_equal(const struct sockaddr *a, const struct sockaddr *b)
{
	if (a->sa_family != b->sa_family) {
		return false;
	}
	if (a->sa_family == AF_INET) {
		return ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
		       ((const struct sockaddr_in *)b)->sin_addr.s_addr;
	}
	return a->sa_family == AF_INET6 &&
	       IN6_ARE_ADDR_EQUAL(&((const struct sockaddr_in6 *)a)->sin6_addr,
				  &((const struct sockaddr_in6 *)b)->sin6_addr);
}

static bool address_is_own(const struct ifaddrs *own, const struct sockaddr *sa)
{
	for (; own; own = own->ifa_next) {
		if (own->ifa_addr && address_equal(own->ifa_addr, sa)) {
			return true;
		}
	}
	return false;
}

/* Adds a numeric address unless it is there already. */
static void roots_add(struct env_roots *roots, const struct sockaddr *sa, socklen_t len)
{
	char text[ENV_NUMERIC];

	if (roots->n == ENV_ROOTS ||
	    getnameinfo(sa, len, text, sizeof(text), NULL, 0, NI_NUMERICHOST) != 0) {
		return;
	}
	for (unsigned int i = 0; i < roots->n; i++) {
		if (strcmp(roots->address[i], text) == 0) {
			return;
		}
	}
	snprintf(roots->address[roots->n++], ENV_NUMERIC, "%s", text);
}

/* A loopback root means this host, which only the root's own host may believe. */
static int env_loopback(const struct env_place *place, struct env_roots *ret)
{
	if (place->many_hosts && place->node > 0) {
		return error_set(ROCE_ERR_INVALID,
				 "%s=%s resolves to a loopback address, but rank %d is on host %d "
				 "of several (see /etc/hosts): set it to an address of rank 0's "
				 "host that the others reach",
				 place->root_given ? "ROCECOMM_ROOT" : "MASTER_ADDR", place->root,
				 place->rank, place->node);
	}
	ret->n = 0;
	return 0;
}

/* What the name of a root stands for. */
struct root_kinds {
	bool loopback;
	bool here; /* an address of this host */
	bool beyond;
};

/* Adds what other hosts may use; @exact: all, since one host may have several daemons. */
static void roots_collect(struct env_roots *roots, const struct addrinfo *found, bool exact,
			  struct root_kinds *ret)
{
	struct root_kinds kinds = {.loopback = false};
	struct ifaddrs *own;

	if (getifaddrs(&own) < 0) {
		own = NULL;
	}
	for (const struct addrinfo *a = found; a; a = a->ai_next) {
		bool local = true;

		if (a->ai_family != AF_INET && a->ai_family != AF_INET6) {
			continue;
		}
		if (address_is_loopback(a->ai_addr)) {
			kinds.loopback = true;
		} else if (address_is_own(own, a->ai_addr)) {
			kinds.here = true;
		} else {
			kinds.beyond = true;
			local = false;
		}
		if (exact || !local) {
			roots_add(roots, a->ai_addr, a->ai_addrlen);
		}
	}
	if (own) {
		freeifaddrs(own);
	}
	*ret = kinds;
}

int env_resolve(const struct env_place *place, struct env_roots *ret)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC};
	/* With a port a daemon is meant, which knows itself; without one, a host. */
	bool exact = place->root_given && place->root_port != 0;
	struct addrinfo *found = NULL;
	struct env_roots roots = {.n = 0};
	struct root_kinds kinds;
	int e;

	if (place->root[0] == '\0' || (place->all_local && !place->root_given)) {
		ret->n = 0;
		return 0;
	}
	e = getaddrinfo(place->root, NULL, &hints, &found);
	if (e != 0) {
		return error_set(ROCE_ERR_UNREACHABLE, "%s=%s does not resolve: %s",
				 place->root_given ? "ROCECOMM_ROOT" : "MASTER_ADDR", place->root,
				 e == EAI_SYSTEM ? strerror(errno) : gai_strerror(e));
	}
	roots_collect(&roots, found, exact, &kinds);
	freeaddrinfo(found);
	if (kinds.here && !exact) {
		ret->n = 0;
		return 0;
	}
	if (kinds.loopback && !kinds.here && !kinds.beyond &&
	    (!exact || (place->many_hosts && place->node > 0))) {
		return env_loopback(place, ret);
	}
	if (roots.n == 0) {
		return error_set(ROCE_ERR_UNREACHABLE, "%s has no IPv4 or IPv6 address",
				 place->root);
	}
	*ret = roots;
	return 0;
}

static const char *env_process(void *ctx, const char *name)
{
	return getenv(name);
}

/* Counts the calls of this process; every rank makes them in the same order. */
static unsigned int env_instance(void)
{
	static _Atomic unsigned int instances;

	/* relaxed: only the count matters */
	return atomic_fetch_add_explicit(&instances, 1, memory_order_relaxed);
}

int roce_comm_init_env(struct roce_client *client, const struct roce_comm_options *options,
		       struct roce_comm **ret_comm)
{
	Rocecomm__EnvId id = ROCECOMM__ENV_ID__INIT;
	char name[ENV_NAME + 16];
	char *roots[ENV_ROOTS];
	struct env_place place;
	struct env_roots found;
	int r;

	r = client_enter(client);
	if (r == 0) {
		r = env_parse(env_process, NULL, &place);
	}
	if (r == 0) {
		r = env_resolve(&place, &found);
	}
	if (r != 0) {
		return r;
	}
	snprintf(name, sizeof(name), "%s:%u", place.name, env_instance());
	for (unsigned int i = 0; i < found.n; i++) {
		roots[i] = found.address[i];
	}
	id.name = name;
	id.root = roots;
	id.n_root = found.n;
	id.root_port = place.root_port;
	return comm_join_env(client, &id, place.rank, place.size, options, ret_comm);
}
