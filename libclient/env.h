/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Environment: rank, size and meeting place from what launchers set
 *
 * Parsing is apart from name lookup and joining, and takes its variables through a callback, so
 * that tests give it tables.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef ROCECLIENT_ENV_H
#define ROCECLIENT_ENV_H

#include <stdbool.h>
#include <stdint.h>

#define ENV_NAME 200	/* bytes of the rendezvous name, with the final 0 */
#define ENV_ADDRESS 256 /* bytes of a host name or address, with the final 0 */
#define ENV_ROOTS 16	/* numeric addresses handed to the daemon */
#define ENV_NUMERIC 64	/* bytes of one of them */

typedef const char *(*env_get_fn)(void *ctx, const char *name);

struct env_place {
	const char *launcher;
	int rank;
	int size;
	int node;		/* index of this host, -1: unknown */
	bool all_local;		/* known to be: all ranks on this host */
	bool many_hosts;	/* known to be: ranks on several hosts */
	bool root_given;	/* ROCECOMM_ROOT, not MASTER_ADDR */
	char root[ENV_ADDRESS]; /* name or address of the root; "": none given */
	uint16_t root_port;	/* 0: the daemon's */
	char name[ENV_NAME];	/* same on all ranks; without the instance */
};

/* Reads the variables. Return: 0 or a status with its sentence. */
int env_parse(env_get_fn get, void *ctx, struct env_place *ret);

struct env_roots {
	unsigned int n; /* 0: this host */
	char address[ENV_ROOTS][ENV_NUMERIC];
};

/* Resolves the root into numeric addresses; none when it is this host. Return: 0 or a status. */
int env_resolve(const struct env_place *place, struct env_roots *ret);

#endif
