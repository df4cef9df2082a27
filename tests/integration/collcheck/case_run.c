/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Case: posting, waiting, comparing
 *
 * Thread: main      Owns: see case.h      Locks: none
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "proto/base.h"
#include "proto/types.h"
#include "tests/integration/collcheck/case.h"

const char *case_text(const struct one_case *c, char *buf, size_t size)
{
	bool reduces = coll_kind_reduces((unsigned int)c->value.kind);

	snprintf(buf, size, "%s %s%s%s x %zu root %d misaligned %u%s (seed %#llx)",
		 c->value.kind == COLL_SEND ? "sendrecv"
					    : coll_kind_name((unsigned int)c->value.kind),
		 reduces ? redop_name((unsigned int)c->value.op) : "", reduces ? " " : "",
		 dtype_name((unsigned int)c->value.dtype), c->count, c->root, c->misalign,
		 c->in_place ? " in place" : "", (unsigned long long)c->value.seed);
	return buf;
}

/* A ring: to the rank `root` further on, from the one as far back. */
static int post_ring(struct one_case *c, struct roce_comm *comm)
{
	int size = (int)c->value.size, step = c->root % size;
	int to = ((int)c->rank + step) % size, from = ((int)c->rank + size - step) % size;
	int r;

	r = roce_irecv(c->recv.data, c->count, c->value.dtype, from, comm, &c->requests[0]);
	if (r == ROCE_OK) {
		r = roce_isend(c->send.data, c->count, c->value.dtype, to, comm, &c->requests[1]);
	}
	return r;
}

static int post_v(struct one_case *c, struct roce_comm *comm, int op)
{
	const void *send = c->send.data;
	void *recv = c->recv.data;
	size_t own = c->recv_counts[c->rank];
	int dtype = c->value.dtype;
	struct roce_request **req = &c->requests[0];

	switch (c->value.kind) {
	case COLL_ALLGATHERV:
		return roce_iallgatherv(send, own, recv, c->recv_counts, c->recv_displs, dtype,
					comm, req);
	case COLL_REDUCE_SCATTERV:
		return roce_ireduce_scatterv(send, recv, c->send_counts, dtype, op, comm, req);
	case COLL_GATHERV:
		return roce_igatherv(send, own, recv, c->recv_counts, c->recv_displs, dtype,
				     c->root, comm, req);
	case COLL_SCATTERV:
		return roce_iscatterv(send, c->send_counts, c->send_displs, recv, own, dtype,
				      c->root, comm, req);
	default:
		return roce_ialltoallv(send, c->send_counts, c->send_displs, recv, c->recv_counts,
				       c->recv_displs, dtype, comm, req);
	}
}

int case_post(struct one_case *c, struct roce_comm *comm, int premul)
{
	const void *send = c->send.data;
	void *recv = c->recv.data;
	int dtype = c->value.dtype;
	int op = c->value.op == REDOP_PREMUL_SUM ? premul : c->value.op;
	struct roce_request **req = &c->requests[0];

	switch (c->value.kind) {
	case COLL_ALLREDUCE:
		return roce_iallreduce(send, recv, c->count, dtype, op, comm, req);
	case COLL_REDUCE:
		return roce_ireduce(send, recv, c->count, dtype, op, c->root, comm, req);
	case COLL_BROADCAST:
		return roce_ibroadcast(recv, c->count, dtype, c->root, comm, req);
	case COLL_ALLGATHER:
		return roce_iallgather(send, recv, c->count, dtype, comm, req);
	case COLL_REDUCE_SCATTER:
		return roce_ireduce_scatter(send, recv, c->count, dtype, op, comm, req);
	case COLL_GATHER:
		return roce_igather(send, recv, c->count, dtype, c->root, comm, req);
	case COLL_SCATTER:
		return roce_iscatter(send, recv, c->count, dtype, c->root, comm, req);
	case COLL_ALLTOALL:
		return roce_ialltoall(send, recv, c->count, dtype, comm, req);
	case COLL_BARRIER:
		return roce_ibarrier(comm, req);
	case COLL_SEND:
		return post_ring(c, comm);
	default:
		return post_v(c, comm, op);
	}
}

int case_wait(struct one_case *c, int timeout_ms)
{
	return roce_wait_all(c->requests, ARRAY_SIZE(c->requests), timeout_ms);
}

static bool side_right(const struct one_case *c, const struct side *side, const char *name)
{
	unsigned int elem = dtype_size((unsigned int)c->value.dtype);
	ptrdiff_t i = 0, at;
	char text[256];

	if (!side->zone || memcmp(side->zone, side->expect, side->zone_size) == 0) {
		return true;
	}
	while (side->zone[i] == side->expect[i]) {
		i++;
	}
	at = i - (side->data - side->zone);
	fprintf(stderr, "rank %u: %s: %s buffer: byte %td (element %td) is %02x, must be %02x",
		c->rank, case_text(c, text, sizeof(text)), name, at, at / (ptrdiff_t)elem,
		side->zone[i], side->expect[i]);
	if (at >= 0 && (size_t)at / elem * elem + elem <= side->zone_size - CASE_GUARD) {
		ptrdiff_t e = side->data - side->zone + at / (ptrdiff_t)elem * (ptrdiff_t)elem;

		fprintf(stderr, "; %.17g, must be %.17g",
			value_read(c->value.dtype, side->zone + e),
			value_read(c->value.dtype, side->expect + e));
	}
	fputc('\n', stderr);
	return false;
}

static uint64_t digest_add(uint64_t digest, const uint8_t *data, size_t size)
{
	uint64_t word;

	for (; size >= sizeof(word); data += sizeof(word), size -= sizeof(word)) {
		memcpy(&word, data, sizeof(word));
		digest = (digest ^ word) * 0x100000001b3u;
		digest ^= digest >> 29;
	}
	for (; size > 0; data++, size--) {
		digest = (digest ^ *data) * 0x100000001b3u;
	}
	return digest;
}

/* Arbitrary floats: only near the reference, so that element by element is the way. */
static bool recv_close(const struct one_case *c)
{
	unsigned int elem = dtype_size((unsigned int)c->value.dtype);
	char text[256];

	assert(c->value.kind == COLL_ALLREDUCE);
	for (size_t i = 0; i < c->count; i++) {
		if (!value_close(&c->value, i, c->recv.data + i * elem)) {
			fprintf(stderr, "rank %u: %s: element %zu is %.17g\n", c->rank,
				case_text(c, text, sizeof(text)), i,
				value_read(c->value.dtype, c->recv.data + i * elem));
			return false;
		}
	}
	return true;
}

bool case_verify(const struct one_case *c, uint64_t *digest)
{
	const struct side *out = c->recv.zone ? &c->recv : &c->send;
	bool right;

	*digest = digest_add(*digest, out->zone, out->zone_size);
	if (c->value.arbitrary) {
		return recv_close(c);
	}
	right = side_right(c, &c->send, "send");
	return side_right(c, &c->recv, "receive") && right;
}
