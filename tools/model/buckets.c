/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Buckets: implementation
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "tools/model/buckets.h"

size_t buckets_assign(const size_t *counts, size_t n, struct bucket *ret)
{
	size_t buckets = 0, base = 0;

	for (size_t i = 0; i < n;) {
		size_t limit = buckets == 0 ? BUCKET_FIRST_BYTES : BUCKET_BYTES;
		struct bucket *b = &ret[buckets++];

		*b = (struct bucket){.first = i, .base = base};
		while (i < n && b->count * sizeof(float) < limit) {
			b->count += counts[i++];
			b->tensors++;
		}
		base += b->count;
	}
	return buckets;
}
