/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Buckets: gradients grouped for communication as PyTorch's DistributedDataParallel does
 *
 * Tensors in the order in which the backward pass makes them, which is the reverse of the model's.
 * A bucket is closed by the tensor that makes it reach its limit: 1 MiB for the first, so that
 * communication begins early, then 25 MiB. Each bucket is one flat buffer; tensors are views of it.
 *
 * Thread: any      Owns: the array      Locks: none
 */
#ifndef MODEL_BUCKETS_H
#define MODEL_BUCKETS_H

#include <stddef.h>

#include "tools/model/tensor.h"

#define BUCKET_FIRST_BYTES (1u << 20)
#define BUCKET_BYTES (25u << 20)
#define BUCKETS_MAX TENSORS_MAX

struct bucket {
	size_t first;	/* place of its first tensor in the order of the backward pass */
	size_t tensors; /* how many */
	size_t base;	/* elements in the buckets before */
	size_t count;	/* elements */
};

/*
 * @counts: elements (f32) of each tensor, in backward order; @ret: room for one bucket each.
 * Return: number of buckets.
 */
size_t buckets_assign(const size_t *counts, size_t n, struct bucket *ret);

#endif
