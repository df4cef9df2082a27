/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Simulated memory: the buffers of all ranks, what is put in and what must come out
 *
 * Every input element has a value of its own (rank, block, element), so a byte that goes astray or
 * is counted twice shows. The whole memory of a rank, guards and gaps included, is compared with an
 * image of what it must be.
 *
 * Thread: any, one user at a time      Owns: all buffers      Locks: none
 */
#ifndef ROCECOMM_TESTS_SIM_DATA_H
#define ROCECOMM_TESTS_SIM_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coll/coll.h"

enum sim_place { SIM_OUT_OF_PLACE, SIM_IN_PLACE, SIM_MIXED };

struct sim_config {
	const struct coll_layout *layout;
	enum coll_kind kind;
	enum coll_algo algo;
	uint32_t root;
	uint64_t count; /* elements of a block; the largest one for v-variants */
	bool floats;	/* f32, checked for equal bits, instead of integers, checked for values */
	bool premul;
	enum sim_place place;
	uint64_t chunk; /* for coll_segment() */
	uint64_t max_temp;
	uint32_t window; /* segments in flight on a host */
	uint64_t seed;
};

struct sim_rank {
	uint8_t *mem;
	uint8_t *image;
	size_t size;
	size_t in; /* offset of the send buffer in mem */
	size_t out;
	bool has_in;
	bool has_out;
	bool in_place;
};

struct sim_data {
	struct sim_config config;
	uint32_t n; /* ranks */
	uint32_t esize;
	bool is_v;
	bool is_alltoall;
	bool symmetric;	   /* alltoallv counts */
	uint64_t *counts;  /* [n] blocks of v-variants */
	uint64_t *displs;  /* [n + 1], elements; of block collectives */
	uint64_t *adispls; /* [n * (n + 1)] alltoallv: of each rank's send buffer, */
	uint64_t *bdispls; /* and of its receive buffer */
	struct sim_rank *ranks;
};

uint64_t sim_hash(uint64_t seed, uint64_t a, uint64_t b, uint64_t c);

struct sim_data *sim_data_new(const struct sim_config *config);
struct sim_data *sim_data_free(struct sim_data *d);

bool sim_is_vector(enum coll_kind kind);
/* Elements of block @block that @rank sends (alltoall: to rank @block). */
uint64_t sim_count(const struct sim_data *d, uint32_t rank, uint32_t block);
/* Elements that @rank receives in an alltoall from rank @block. */
uint64_t sim_count_from(const struct sim_data *d, uint32_t rank, uint32_t block);
uint8_t *sim_block(const struct sim_data *d, uint32_t rank, bool out, uint32_t block);
/* Longest block that the ranks of @host know of. */
uint64_t sim_longest(const struct sim_data *d, uint32_t host);

/* What a reduction does with sources and with its result; see reduce.h for the real ones. */
void sim_combine(const struct sim_data *d, uint8_t *dst, const uint8_t *const *src,
		 const uint32_t *raw_rank, uint32_t nsrc, uint64_t elems, bool final);

/* Checks all memory. Return: NULL or what is wrong; @ret_digest: of all bits of all outputs. */
const char *sim_data_verify(struct sim_data *d, uint64_t *ret_digest);

#endif
