/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Layout: which ranks live on which host
 *
 * Both directions as plain arrays, computed once a communicator and never changed.
 *
 * Thread: any      Owns: layouts      Locks: none
 */
#include <string.h>

#include "coll/coll.h"
#include "proto/base.h"
#include "proto/limits.h"

/* Counts the ranks of each host into host_first[h + 1]; refuses what cannot be a layout. */
static int count_ranks(struct coll_layout *l)
{
	for (uint32_t r = 0; r < l->nranks; r++) {
		if (l->host_of[r] >= l->nhosts) {
			return -EINVAL;
		}
		l->host_first[l->host_of[r] + 1]++;
	}
	for (uint32_t h = 0; h < l->nhosts; h++) {
		if (l->host_first[h + 1] == 0 || l->host_first[h + 1] > LIMIT_LOCAL_RANKS) {
			return -EINVAL;
		}
	}
	return 0;
}

/**
 * coll_layout_new() - index the ranks of a communicator by host
 * @host_of:  borrowed, [nranks]
 * @nranks:   1 .. LIMIT_COMM_RANKS
 * @nhosts:   1 .. nranks; each host has at least one rank
 * @ret:      new layout
 *
 * Return: 0, -EINVAL or -ENOMEM.
 */
int coll_layout_new(const uint32_t *host_of, uint32_t nranks, uint32_t nhosts,
		    struct coll_layout **ret)
{
	struct coll_layout *l;
	int r;

	if (nranks == 0 || nranks > LIMIT_COMM_RANKS || nhosts == 0 || nhosts > nranks) {
		return -EINVAL;
	}
	l = calloc(1, sizeof(*l));
	if (!l) {
		return err_origin(-ENOMEM);
	}
	l->nranks = nranks;
	l->nhosts = nhosts;
	l->host_of = calloc(nranks, sizeof(*l->host_of));
	l->local_of = calloc(nranks, sizeof(*l->local_of));
	l->host_first = calloc((size_t)nhosts + 1, sizeof(*l->host_first));
	l->by_host = calloc(nranks, sizeof(*l->by_host));
	if (!l->host_of || !l->local_of || !l->host_first || !l->by_host) {
		coll_layout_free(l);
		return err_origin(-ENOMEM);
	}
	memcpy(l->host_of, host_of, nranks * sizeof(*host_of));
	r = count_ranks(l);
	if (r) {
		coll_layout_free(l);
		return r;
	}
	for (uint32_t h = 0; h < nhosts; h++) {
		l->host_first[h + 1] += l->host_first[h];
	}
	/* host_first[h] runs to the end of its host, then everything is moved back by one host. */
	for (uint32_t rank = 0; rank < nranks; rank++) {
		l->by_host[l->host_first[host_of[rank]]++] = rank;
	}
	memmove(l->host_first + 1, l->host_first, nhosts * sizeof(*l->host_first));
	l->host_first[0] = 0;
	for (uint32_t i = 0; i < nranks; i++) {
		uint32_t rank = l->by_host[i];

		l->local_of[rank] = i - l->host_first[host_of[rank]];
	}
	*ret = l;
	return 0;
}

struct coll_layout *coll_layout_free(struct coll_layout *layout)
{
	if (!layout) {
		return NULL;
	}
	free(layout->host_of);
	free(layout->local_of);
	free(layout->host_first);
	free(layout->by_host);
	free(layout);
	return NULL;
}
