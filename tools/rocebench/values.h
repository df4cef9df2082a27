/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Values: what ranks send, and what must come out of it
 *
 * What is only moved is bytes that tell source, operation and place. What is reduced is small
 * integers, chosen so that every partial result is exact in the type whatever the order: the result
 * must then equal the reference to the last bit. All of it is computed from (seed, rank, place), so
 * that every rank can check every byte it got without having seen the others' input.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef ROCEBENCH_VALUES_H
#define ROCEBENCH_VALUES_H

#include <stddef.h>
#include <stdint.h>

/* Elements that values_reduced() makes in one go. */
#define VALUES_CHUNK 1024

struct values {
	int dtype, redop;
	int size; /* ranks */
	uint32_t seed;
};

/* Bytes @first .. of what @rank sends. */
void values_moved(const struct values *v, int rank, size_t first, size_t n, uint8_t *out);
/* Elements @first .. of what @rank gives to a reduction. */
void values_given(const struct values *v, int rank, size_t first, size_t n, void *out);
/* What the reduction must make of elements @first ..; @n: at most VALUES_CHUNK. */
void values_reduced(const struct values *v, size_t first, size_t n, void *out);

#endif
