/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Engine lab: several hosts in one process - real engines, real sockets, no control plane
 *
 * Each host is an engine with its progress thread; hosts are joined by socket pairs; ranks are
 * sessions whose rings the test writes itself. The test's thread is the control thread of all.
 *
 * Thread: the test's      Owns: everything it makes      Locks: none
 */
#ifndef ROCECOMM_TESTS_ENGINE_LAB_H
#define ROCECOMM_TESTS_ENGINE_LAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"
#include "proto/ring.h"

#define LAB_MAX_HOSTS 8
#define LAB_MAX_RANKS 32

struct lab_rank {
	uint32_t host, local;
	void *page;
	struct ring_producer ring;
	struct engine_session *session;
	int bell, event;
	uint8_t *mem; /* buffer id 1 */
	size_t size;
	struct region *region;
	struct region
		*args; /* the same bytes as memory of the host: buffer id 3; NULL: is region */
	uint64_t seq;
	uint64_t sends[LAB_MAX_RANKS], recvs[LAB_MAX_RANKS];
	uint32_t ticket; /* next */
	bool gone;
};

struct lab {
	uint32_t nhosts, nranks;
	struct engine *engines[LAB_MAX_HOSTS];
	struct engine_peer *peers[LAB_MAX_HOSTS][LAB_MAX_HOSTS];
	struct coll_layout *layout;
	struct coll_tuning tuning;
	struct engine_comm *comms[LAB_MAX_HOSTS];
	struct comm_view *views[LAB_MAX_HOSTS];
	struct lab_rank ranks[LAB_MAX_RANKS];
	uint32_t spin_us, arrival_ms;
	bool ring; /* hosts are linked with their neighbours only */
	int pending;
	struct engine_failure failure; /* the last one reported */
	int failures;
	int peers_down;
	int corrupt;			     /* rings */
	struct lab_gpu *gpus[LAB_MAX_HOSTS]; /* NULL: all memory is the host's */
};

/* @host_of: [nranks]. @mem: bytes of buffer 1 of each rank. @tuning: rules or NULL. */
struct lab *lab_new(const uint32_t *host_of, uint32_t nranks, uint32_t nhosts, size_t mem,
		    const char *tuning);
/* The same with the thread's polling time and the arrival time-out given. */
struct lab *lab_new_timed(const uint32_t *host_of, uint32_t nranks, uint32_t nhosts, size_t mem,
			  const char *tuning, uint32_t spin_us, uint32_t arrival_ms);
/* The same with links between neighbours only, the last and the first among them. */
struct lab *lab_new_ring(const uint32_t *host_of, uint32_t nranks, uint32_t nhosts, size_t mem,
			 const char *tuning);
/* Gives everything back and checks that all of it came back. */
void lab_free(struct lab *lab);
/* Control work of all engines, once. */
void lab_pump(struct lab *lab);
/* Lets time pass; control works meanwhile, or no plan would be built. */
void lab_rest(struct lab *lab, int ms);
/* Posts; fills ticket and seq. Return: the ticket. */
uint32_t lab_post(struct lab *lab, uint32_t rank, struct shm_desc *d);
/* Waits for a ticket. Return: its status; -1 after 20 s. */
int lab_wait(struct lab *lab, uint32_t rank, uint32_t ticket);
bool lab_done(struct lab *lab, uint32_t rank, uint32_t ticket);
/* A rank's process dies: detached, its session removed, its memory unmapped as soon as it may be.
 */
void lab_kill(struct lab *lab, uint32_t rank);
/* One more stream between two hosts. Return: the end of @from, where the test may speak, too. */
int lab_wire(struct lab *lab, uint32_t to, uint32_t from);
/* Cuts the sockets between two hosts. */
void lab_cut(struct lab *lab, uint32_t a, uint32_t b);

#endif
