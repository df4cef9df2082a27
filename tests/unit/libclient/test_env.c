/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Launchers' environments, as tables
 *
 * Thread: the test's      Owns: nothing      Locks: none
 */
#include "test_client.h"

#include "libclient/env.h"
#include "proto/base.h"

struct env_case {
	const char *what;
	const char *vars[16]; /* name, value, ... */
	int status;
	const char *words; /* of the refusal, or the rendezvous name */
	int rank, size;
	const char *root;
	int port;
	bool local, many;
};

static const char *from_table(void *ctx, const char *name)
{
	const struct env_case *c = ctx;

	for (size_t i = 0; i + 1 < ARRAY_SIZE(c->vars) && c->vars[i]; i += 2) {
		if (strcmp(c->vars[i], name) == 0) {
			return c->vars[i + 1];
		}
	}
	return NULL;
}

static const struct env_case cases[] = {
	{"nothing", {NULL}, ROCE_ERR_INVALID, "looked for RANK and WORLD_SIZE"},
	{"torchrun",
	 {"RANK", "3", "WORLD_SIZE", "8", "MASTER_ADDR", "10.1.2.3", "MASTER_PORT", "29500",
	  "TORCHELASTIC_RUN_ID", "job7", "LOCAL_WORLD_SIZE", "4", "GROUP_RANK", "0"},
	 0,
	 "torchrun:10.1.2.3:29500:job7",
	 3,
	 8,
	 "10.1.2.3",
	 0,
	 false,
	 true},
	{"torchrun on one host",
	 {"RANK", "1", "WORLD_SIZE", "2", "MASTER_ADDR", "box", "LOCAL_WORLD_SIZE", "2"},
	 0,
	 "torchrun:box:-:-",
	 1,
	 2,
	 "box",
	 0,
	 true,
	 false},
	{"torchrun by hand",
	 {"RANK", "0", "WORLD_SIZE", "2", "MASTER_ADDR", "h"},
	 0,
	 "torchrun:h:-:-",
	 0,
	 2,
	 "h",
	 0,
	 false,
	 false},
	{"plain variables", {"RANK", "0", "WORLD_SIZE", "2"}, 0, "torchrun:-:-:-", 0, 2, ""},
	{"one rank", {"RANK", "0", "WORLD_SIZE", "1"}, 0, "torchrun:-:-:-", 0, 1, "", 0, true},
	{"open mpi",
	 {"OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "2", "OMPI_COMM_WORLD_LOCAL_SIZE",
	  "2", "PMIX_NAMESPACE", "prterun-1@1", "PMIX_RANK", "1"},
	 0,
	 "openmpi:-:-:prterun-1@1:-:-",
	 1,
	 2,
	 "",
	 0,
	 true,
	 false},
	{"open mpi over hosts without an address",
	 {"OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_LOCAL_SIZE",
	  "2"},
	 ROCE_ERR_INVALID,
	 "neither MASTER_ADDR nor ROCECOMM_ROOT"},
	{"pmix",
	 {"PMIX_RANK", "2", "PMIX_NAMESPACE", "ns", "SLURM_NTASKS", "4"},
	 0,
	 "pmix:-:-:ns:-:-",
	 2,
	 4,
	 ""},
	{"slurm",
	 {"SLURM_PROCID", "5", "SLURM_NTASKS", "6", "SLURM_JOB_ID", "99", "SLURM_STEP_ID", "0",
	  "SLURM_NNODES", "1"},
	 0,
	 "slurm:-:-:99:0",
	 5,
	 6,
	 "",
	 0,
	 true,
	 false},
	{"a step on one host of a larger job",
	 {"SLURM_PROCID", "0", "SLURM_NTASKS", "2", "SLURM_NNODES", "4", "SLURM_STEP_NUM_NODES",
	  "1"},
	 0,
	 "slurm:-:-:-:-",
	 0,
	 2,
	 "",
	 0,
	 true,
	 false},
	{"slurm over hosts",
	 {"SLURM_PROCID", "5", "SLURM_NTASKS", "6", "SLURM_NNODES", "2", "MASTER_ADDR", "n1"},
	 0,
	 "slurm:n1:-:-:-",
	 5,
	 6,
	 "n1",
	 0,
	 false,
	 true},
	{"torchrun inside slurm wins",
	 {"SLURM_PROCID", "0", "SLURM_NTASKS", "2", "RANK", "7", "WORLD_SIZE", "16"},
	 0,
	 "torchrun:-:-:-",
	 7,
	 16,
	 ""},
	{"root overrides",
	 {"RANK", "0", "WORLD_SIZE", "2", "MASTER_ADDR", "a", "ROCECOMM_ROOT", "10.0.0.9:7777"},
	 0,
	 "torchrun:a:-:-",
	 0,
	 2,
	 "10.0.0.9",
	 7777},
	{"root v6",
	 {"RANK", "0", "WORLD_SIZE", "2", "ROCECOMM_ROOT", "[fd00::1]:80"},
	 0,
	 "torchrun:-:-:-",
	 0,
	 2,
	 "fd00::1",
	 80},
	{"root bare v6",
	 {"RANK", "0", "WORLD_SIZE", "2", "ROCECOMM_ROOT", "fd00::1"},
	 0,
	 "torchrun:-:-:-",
	 0,
	 2,
	 "fd00::1",
	 0},
	{"root without port",
	 {"RANK", "0", "WORLD_SIZE", "2", "ROCECOMM_ROOT", "h:"},
	 ROCE_ERR_INVALID,
	 "ROCECOMM_ROOT=h:"},
	{"root port 0",
	 {"RANK", "0", "WORLD_SIZE", "2", "ROCECOMM_ROOT", "h:0"},
	 ROCE_ERR_INVALID,
	 "ROCECOMM_ROOT=h:0"},
	{"root big port",
	 {"RANK", "0", "WORLD_SIZE", "2", "ROCECOMM_ROOT", "h:65536"},
	 ROCE_ERR_INVALID,
	 "ROCECOMM_ROOT"},
	{"root half bracket",
	 {"RANK", "0", "WORLD_SIZE", "2", "ROCECOMM_ROOT", "[fd00::1"},
	 ROCE_ERR_INVALID,
	 "ROCECOMM_ROOT"},
	{"rank too big",
	 {"RANK", "2", "WORLD_SIZE", "2"},
	 ROCE_ERR_INVALID,
	 "RANK=2 is not a rank in 0 .. 1"},
	{"rank negative", {"RANK", "-1", "WORLD_SIZE", "2"}, ROCE_ERR_INVALID, "RANK=-1"},
	{"rank garbage", {"RANK", "1x", "WORLD_SIZE", "2"}, ROCE_ERR_INVALID, "RANK=1x"},
	{"size garbage", {"RANK", "1", "WORLD_SIZE", "two"}, ROCE_ERR_INVALID, "WORLD_SIZE=two"},
	{"size zero", {"RANK", "0", "WORLD_SIZE", "0"}, ROCE_ERR_INVALID, "WORLD_SIZE=0"},
	{"size huge",
	 {"RANK", "0", "WORLD_SIZE", "99999999999999999999"},
	 ROCE_ERR_INVALID,
	 "WORLD_SIZE=9999"},
	{"empty is unset",
	 {"RANK", "", "WORLD_SIZE", "2", "SLURM_PROCID", "0", "SLURM_NTASKS", "1"},
	 0,
	 "slurm:-:-:-:-",
	 0,
	 1,
	 "",
	 0,
	 true},
};

Test(env, table)
{
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const struct env_case *c = &cases[i];
		struct env_place place;
		int r = env_parse(from_table, (void *)(uintptr_t)c, &place);

		cr_assert_eq(r, c->status, "%s: %d: %s", c->what, r, roce_last_error());
		if (r != 0) {
			cr_assert(strstr(roce_last_error(), c->words), "%s: %s", c->what,
				  roce_last_error());
			continue;
		}
		cr_assert_str_eq(place.name, c->words, "%s: %s", c->what, place.name);
		cr_assert_eq(place.rank, c->rank, "%s", c->what);
		cr_assert_eq(place.size, c->size, "%s", c->what);
		cr_assert_str_eq(place.root, c->root, "%s: %s", c->what, place.root);
		cr_assert_eq(place.root_port, c->port, "%s", c->what);
		cr_assert_eq(place.all_local, c->local, "%s", c->what);
		cr_assert_eq(place.many_hosts, c->many, "%s", c->what);
	}
}

Test(env, long_names_are_shortened_alike)
{
	char id[1500], other[1500];
	struct env_case c = {.vars = {"RANK", "0", "WORLD_SIZE", "2", "TORCHELASTIC_RUN_ID", id}};
	struct env_place a, b;

	memset(id, 'r', sizeof(id));
	id[sizeof(id) - 1] = '\0';
	ok(env_parse(from_table, &c, &a));
	cr_assert_lt(strlen(a.name), ENV_NAME);
	memcpy(other, id, sizeof(id));
	other[1400] = 's';
	c.vars[5] = other;
	ok(env_parse(from_table, &c, &b));
	cr_assert_str_neq(a.name, b.name);
	c.vars[5] = id;
	ok(env_parse(from_table, &c, &b));
	cr_assert_str_eq(a.name, b.name);
}

Test(env, resolves)
{
	struct env_place place = {.size = 2, .node = -1};
	struct env_roots roots = {.n = 9};

	ok(env_resolve(&place, &roots));
	cr_assert_eq(roots.n, 0);
	strcpy(place.root, "127.0.0.1");
	ok(env_resolve(&place, &roots));
	cr_assert_eq(roots.n, 0);
	strcpy(place.root, "192.0.2.7");
	ok(env_resolve(&place, &roots));
	cr_assert_eq(roots.n, 1);
	cr_assert_str_eq(roots.address[0], "192.0.2.7");
	strcpy(place.root, "2001:db8::7");
	ok(env_resolve(&place, &roots));
	cr_assert_str_eq(roots.address[0], "2001:db8::7");
	/* One host needs no name service. */
	strcpy(place.root, "no-such-host.invalid");
	place.all_local = true;
	ok(env_resolve(&place, &roots));
	cr_assert_eq(roots.n, 0);
	place.all_local = false;
	refused(env_resolve(&place, &roots), ROCE_ERR_UNREACHABLE, "no-such-host.invalid");
	/* A host file that maps the name to loopback is an error everywhere but at home. */
	strcpy(place.root, "127.0.1.1");
	place.many_hosts = true;
	place.node = 0;
	ok(env_resolve(&place, &roots));
	place.node = 1;
	refused(env_resolve(&place, &roots), ROCE_ERR_INVALID, "/etc/hosts");
	/* With a port one daemon of several on this host is meant. */
	place = (struct env_place){.size = 2, .node = -1, .root_given = true, .root_port = 4871};
	strcpy(place.root, "127.0.0.1");
	ok(env_resolve(&place, &roots));
	cr_assert_eq(roots.n, 1);
	cr_assert_str_eq(roots.address[0], "127.0.0.1");
	place.many_hosts = true;
	place.node = 1;
	refused(env_resolve(&place, &roots), ROCE_ERR_INVALID, "/etc/hosts");
}

Test(env, joins)
{
	static struct fake fake;
	struct roce_client *client;
	struct roce_comm *comm;

	fake_start(&fake);
	client = test_connect(&fake);
	refused(roce_comm_init_env(client, NULL, &comm), ROCE_ERR_INVALID, "looked for");
	setenv("RANK", "1", 1);
	setenv("WORLD_SIZE", "2", 1);
	setenv("MASTER_ADDR", "192.0.2.1", 1);
	setenv("MASTER_PORT", "1234", 1);
	ok(roce_comm_init_env(client, NULL, &comm));
	cr_assert_eq(roce_comm_rank(comm), 1);
	cr_assert_str_eq(fake.env_name, "torchrun:192.0.2.1:1234:-:0");
	cr_assert_str_eq(fake.env_root, "192.0.2.1");
	ok(roce_comm_init_env(client, NULL, &comm));
	cr_assert_str_eq(fake.env_name, "torchrun:192.0.2.1:1234:-:1");
	roce_disconnect(client);
	fake_stop(&fake);
}
