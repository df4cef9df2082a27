/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Check: the arguments of an operation, before anything is touched
 *
 * Pure functions over the public arguments. Each refusal names the call's operation, the value,
 * the limit and, where it is not plain, the mend. The daemon checks again what it is sent; here it
 * is about telling the user at once and in his own terms.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "libclient/post.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "libclient/comm.h"
#include "libclient/error.h"
#include "libclient/roceclient.h"
#include "proto/base.h"

static_assert((int)ROCE_I8 == (int)DTYPE_I8 && (int)ROCE_U8 == (int)DTYPE_U8, "dtype");
static_assert((int)ROCE_I16 == (int)DTYPE_I16 && (int)ROCE_U16 == (int)DTYPE_U16, "dtype");
static_assert((int)ROCE_I32 == (int)DTYPE_I32 && (int)ROCE_U32 == (int)DTYPE_U32, "dtype");
static_assert((int)ROCE_I64 == (int)DTYPE_I64 && (int)ROCE_U64 == (int)DTYPE_U64, "dtype");
static_assert((int)ROCE_F16 == (int)DTYPE_F16 && (int)ROCE_BF16 == (int)DTYPE_BF16, "dtype");
static_assert((int)ROCE_F32 == (int)DTYPE_F32 && (int)ROCE_F64 == (int)DTYPE_F64, "dtype");
static_assert((int)ROCE_F8E4M3 == (int)DTYPE_F8E4M3, "dtype");
static_assert((int)ROCE_F8E5M2 == (int)DTYPE_F8E5M2, "dtype");
static_assert((int)ROCE_F8E5M2 + 1 == (int)DTYPE_COUNT_, "dtype");
static_assert((int)ROCE_SUM == (int)REDOP_SUM && (int)ROCE_PROD == (int)REDOP_PROD, "op");
static_assert((int)ROCE_MIN == (int)REDOP_MIN && (int)ROCE_MAX == (int)REDOP_MAX, "op");
static_assert((int)ROCE_AVG == (int)REDOP_AVG && (int)ROCE_BAND == (int)REDOP_BAND, "op");
static_assert((int)ROCE_BOR == (int)REDOP_BOR && (int)ROCE_BXOR == (int)REDOP_BXOR, "op");
static_assert((int)ROCE_LAND == (int)REDOP_LAND && (int)ROCE_LOR == (int)REDOP_LOR, "op");
static_assert((int)ROCE_LXOR == (int)REDOP_LXOR && (int)ROCE_LXOR + 1 == (int)REDOP_COUNT_, "op");

static int check_premul(const struct post_args *args, const struct roce_comm *comm,
			uint64_t *ret_scalar)
{
	unsigned int slot = (unsigned int)(args->op - ROCE_OP_USER);
	double scalar;
	int64_t integer;

	if (slot >= COMM_PREMUL_MAX || !comm->premul[slot].used) {
		return error_set(ROCE_ERR_INVALID,
				 "%s: op 0x%x was not made by roce_op_create_premul() on this "
				 "communicator, or was freed",
				 coll_kind_name(args->kind), (unsigned int)args->op);
	}
	scalar = comm->premul[slot].scalar;
	if (dtype_is_float((unsigned int)args->dtype)) {
		memcpy(ret_scalar, &scalar, sizeof(scalar));
		return 0;
	}
	if (!(scalar >= -9223372036854775808.0 && scalar < 9223372036854775808.0) ||
	    scalar != trunc(scalar)) {
		return error_set(ROCE_ERR_INVALID,
				 "%s: the scalar %g of a pre-multiplied sum of %s must be a whole "
				 "number in the range of int64",
				 coll_kind_name(args->kind), scalar,
				 dtype_name((unsigned int)args->dtype));
	}
	integer = (int64_t)scalar;
	memcpy(ret_scalar, &integer, sizeof(integer));
	return 0;
}

int check_redop(const struct post_args *args, const struct roce_comm *comm, uint8_t *ret_op,
		uint64_t *ret_scalar)
{
	unsigned int op = (unsigned int)args->op;
	int r;

	*ret_op = 0;
	*ret_scalar = 0;
	if (!coll_kind_reduces(args->kind)) {
		return 0;
	}
	if (args->op >= ROCE_OP_USER) {
		r = check_premul(args, comm, ret_scalar);
		if (r != 0) {
			return r;
		}
		op = REDOP_PREMUL_SUM;
	} else if (op >= REDOP_COUNT_ || op == REDOP_PREMUL_SUM) {
		return error_set(ROCE_ERR_INVALID,
				 "%s: op %d is not an enum roce_op (ROCE_SUM 0 .. ROCE_LXOR %d)",
				 coll_kind_name(args->kind), args->op, ROCE_LXOR);
	}
	if (!redop_supports(op, (unsigned int)args->dtype)) {
		bool moved = !redop_supports(REDOP_SUM, (unsigned int)args->dtype);

		return error_set(ROCE_ERR_UNSUPPORTED, "%s: %s of %s does not exist: %s",
				 coll_kind_name(args->kind), redop_name(op),
				 dtype_name((unsigned int)args->dtype),
				 moved ? "this type is moved, never reduced; convert to f16 or f32"
				       : "bitwise and logical operations take integers only");
	}
	*ret_op = (uint8_t)op;
	return 0;
}

static int too_large(const struct post_args *args, size_t count, int ranks)
{
	return error_set(ROCE_ERR_INVALID,
			 "%s: %zu elements of %u bytes for %d ranks exceed the address space",
			 coll_kind_name(args->kind), count, dtype_size((unsigned int)args->dtype),
			 ranks);
}

/* One contiguous piece of @count x @blocks elements. */
static int region_plain(const struct post_args *args, const void *base, size_t count, int blocks,
			const char *side, struct post_region *ret)
{
	size_t size;

	if (__builtin_mul_overflow(count, (size_t)blocks, &size) ||
	    __builtin_mul_overflow(size, (size_t)dtype_size((unsigned int)args->dtype), &size) ||
	    size > PTRDIFF_MAX) {
		return too_large(args, count, blocks);
	}
	if (size > 0 && !base) {
		return error_set(ROCE_ERR_INVALID, "%s: %s is NULL with %zu bytes to move",
				 coll_kind_name(args->kind), side, size);
	}
	if ((uintptr_t)base + size < (uintptr_t)base) {
		return too_large(args, count, blocks);
	}
	ret->base = (uint8_t *)(uintptr_t)base;
	ret->ptr = ret->base;
	ret->size = size;
	return 0;
}

/* Displacement of block @i in elements; without displs blocks follow each other. */
static size_t region_displ(const struct post_region *region, size_t i, size_t *running)
{
	size_t at = *running;

	*running += region->counts[i];
	return region->displs ? region->displs[i] : at;
}

/* Blocks, one a rank. */
static int region_blocks(const struct post_args *args, const void *base, const size_t *counts,
			 const size_t *displs, int ranks, const char *side, struct post_region *ret)
{
	size_t lo = SIZE_MAX, hi = 0, running = 0;
	size_t max = (size_t)PTRDIFF_MAX / ret->elem;

	ret->base = (uint8_t *)(uintptr_t)base;
	ret->counts = counts;
	ret->displs = displs;
	ret->n = (size_t)ranks;
	for (int i = 0; i < ranks; i++) {
		size_t at = region_displ(ret, (size_t)i, &running);

		if (counts[i] == 0) {
			continue;
		}
		if (counts[i] > max || at > max - counts[i] || running > max) {
			return error_set(ROCE_ERR_INVALID,
					 "%s: %s block of rank %d: %zu elements at %zu exceed the "
					 "address space",
					 coll_kind_name(args->kind), side, i, counts[i], at);
		}
		lo = MIN(lo, at);
		hi = MAX(hi, at + counts[i]);
	}
	if (hi == 0) {
		return 0;
	}
	if (!base) {
		return error_set(ROCE_ERR_INVALID, "%s: %s is NULL with %zu elements to move",
				 coll_kind_name(args->kind), side, hi - lo);
	}
	if ((uintptr_t)base + hi * ret->elem < (uintptr_t)base) {
		return too_large(args, hi, 1);
	}
	ret->skip = lo;
	ret->ptr = ret->base + lo * ret->elem;
	ret->size = (hi - lo) * ret->elem;
	return 0;
}

/* The arrays of a v-variant that this rank must give. */
static int check_arrays(const struct post_args *args, bool root)
{
	bool send = args->kind == COLL_REDUCE_SCATTERV || args->kind == COLL_ALLTOALLV ||
		    (args->kind == COLL_SCATTERV && root);
	bool recv = args->kind == COLL_ALLGATHERV || args->kind == COLL_ALLTOALLV ||
		    (args->kind == COLL_GATHERV && root);
	const char *missing = NULL;

	if (send && !args->send_counts) {
		missing = args->kind == COLL_ALLTOALLV ? "send_counts" : "counts";
	} else if (send && !args->send_displs && args->kind != COLL_REDUCE_SCATTERV) {
		missing = args->kind == COLL_ALLTOALLV ? "send_displs" : "displs";
	} else if (recv && !args->recv_counts) {
		missing = args->kind == COLL_ALLTOALLV ? "recv_counts" : "counts";
	} else if (recv && !args->recv_displs) {
		missing = args->kind == COLL_ALLTOALLV ? "recv_displs" : "displs";
	}
	if (missing) {
		return error_set(ROCE_ERR_INVALID, "%s: %s is NULL", coll_kind_name(args->kind),
				 missing);
	}
	return 0;
}

struct block {
	size_t at;
	size_t end;
	int rank;
};

static int block_compare(const void *a, const void *b)
{
	const struct block *x = a, *y = b;

	return x->at < y->at ? -1 : x->at > y->at;
}

/* Two results in one place would leave either. The usual ascending order needs no sort. */
static int check_disjoint(const struct post_args *args, const struct post_region *recv)
{
	cleanup_free struct block *blocks = NULL;
	bool ascending = true;
	size_t n = 0, end = 0;

	for (size_t i = 0; i < recv->n && ascending; i++) {
		if (recv->counts[i] > 0) {
			ascending = recv->displs[i] >= end;
			end = recv->displs[i] + recv->counts[i];
		}
	}
	if (ascending) {
		return 0;
	}
	blocks = malloc(recv->n * sizeof(*blocks));
	if (!blocks) {
		return error_set(ROCE_ERR_NO_MEMORY, "no memory to sort %zu blocks", recv->n);
	}
	for (size_t i = 0; i < recv->n; i++) {
		if (recv->counts[i] > 0) {
			blocks[n++] = (struct block){recv->displs[i],
						     recv->displs[i] + recv->counts[i], (int)i};
		}
	}
	qsort(blocks, n, sizeof(*blocks), block_compare);
	for (size_t i = 1; i < n; i++) {
		if (blocks[i].at < blocks[i - 1].end) {
			return error_set(ROCE_ERR_INVALID,
					 "%s: the blocks of ranks %d and %d overlap in recv "
					 "(elements %zu .. %zu and %zu .. %zu)",
					 coll_kind_name(args->kind), blocks[i - 1].rank,
					 blocks[i].rank, blocks[i - 1].at, blocks[i - 1].end - 1,
					 blocks[i].at, blocks[i].end - 1);
		}
	}
	return 0;
}

static int check_v(const struct post_args *args, const struct roce_comm *comm, struct post_shape *s)
{
	bool root = args->root == comm->rank;
	const size_t *own = NULL;
	int n = comm->size;
	int r;

	r = check_arrays(args, root);
	if (r != 0) {
		return r;
	}
	switch (args->kind) {
	case COLL_ALLGATHERV:
	case COLL_GATHERV:
		r = region_plain(args, args->send, args->count, 1, "send", &s->send);
		if (r == 0 && (root || args->kind == COLL_ALLGATHERV)) {
			own = args->recv_counts;
			r = region_blocks(args, args->recv, args->recv_counts, args->recv_displs, n,
					  "recv", &s->recv);
		}
		break;
	case COLL_REDUCE_SCATTERV:
		r = region_blocks(args, args->send, args->send_counts, NULL, n, "send", &s->send);
		if (r == 0) {
			r = region_plain(args, args->recv, args->count, 1, "recv", &s->recv);
		}
		break;
	case COLL_SCATTERV:
		r = region_plain(args, args->recv, args->count, 1, "recv", &s->recv);
		if (r == 0 && root) {
			own = args->send_counts;
			r = region_blocks(args, args->send, args->send_counts, args->send_displs, n,
					  "send", &s->send);
		}
		break;
	default: /* COLL_ALLTOALLV */
		r = region_blocks(args, args->send, args->send_counts, args->send_displs, n, "send",
				  &s->send);
		if (r == 0) {
			r = region_blocks(args, args->recv, args->recv_counts, args->recv_displs, n,
					  "recv", &s->recv);
		}
		break;
	}
	if (r == 0 && s->recv.n > 0) {
		r = check_disjoint(args, &s->recv);
	}
	if (r == 0 && own && own[comm->rank] != args->count) {
		return error_set(
			ROCE_ERR_INVALID, "%s: this rank's own count is %zu, but counts[%d] is %zu",
			coll_kind_name(args->kind), args->count, comm->rank, own[comm->rank]);
	}
	return r;
}

static int check_blocks(const struct post_args *args, const struct roce_comm *comm,
			struct post_shape *s)
{
	bool root = args->root == comm->rank;
	int send = 1, recv = 1;
	int r;

	switch (args->kind) {
	case COLL_REDUCE:
		recv = root ? 1 : 0;
		break;
	case COLL_ALLGATHER:
		recv = comm->size;
		break;
	case COLL_REDUCE_SCATTER:
		send = comm->size;
		break;
	case COLL_GATHER:
		recv = root ? comm->size : 0;
		break;
	case COLL_SCATTER:
		send = root ? comm->size : 0;
		break;
	case COLL_ALLTOALL:
		send = comm->size;
		recv = comm->size;
		break;
	case COLL_SEND:
		recv = 0;
		break;
	case COLL_RECV:
		send = 0;
		break;
	case COLL_BARRIER:
		return 0;
	default: /* COLL_ALLREDUCE, COLL_BROADCAST */
		break;
	}
	r = region_plain(args, args->send, args->count, send, "send", &s->send);
	if (r == 0) {
		r = region_plain(args, args->recv, args->count, recv, "recv", &s->recv);
	}
	return r;
}

/* Where in-place puts the smaller side inside the larger one: bytes from the larger one's base. */
static size_t in_place_offset(const struct post_args *args, const struct roce_comm *comm,
			      size_t elem)
{
	size_t at = 0;

	switch (args->kind) {
	case COLL_ALLGATHER:
	case COLL_GATHER:
	case COLL_REDUCE_SCATTER:
	case COLL_SCATTER:
		return (size_t)comm->rank * args->count * elem;
	case COLL_ALLGATHERV:
	case COLL_GATHERV:
		return args->recv_displs[comm->rank] * elem;
	case COLL_SCATTERV:
		return args->send_displs[comm->rank] * elem;
	case COLL_REDUCE_SCATTERV:
		for (int i = 0; i < comm->rank; i++) {
			at += args->send_counts[i];
		}
		return at * elem;
	default:
		return 0;
	}
}

/* Does a contiguous side touch a block of the other? Gaps between blocks are free. */
static bool blocks_overlap(const struct post_region *blocks, const struct post_region *plain)
{
	size_t running = 0;

	for (size_t i = 0; i < blocks->n; i++) {
		size_t at = region_displ(blocks, i, &running);

		if (ranges_overlap(blocks->base + at * blocks->elem,
				   blocks->counts[i] * blocks->elem, plain->ptr, plain->size)) {
			return true;
		}
	}
	return false;
}

static int check_overlap(const struct post_args *args, const struct roce_comm *comm,
			 struct post_shape *s)
{
	bool send_larger = args->kind == COLL_REDUCE_SCATTER || args->kind == COLL_SCATTER ||
			   args->kind == COLL_REDUCE_SCATTERV || args->kind == COLL_SCATTERV;
	const uint8_t *large = send_larger ? s->send.base : s->recv.base;
	const uint8_t *small = send_larger ? s->recv.base : s->send.base;
	size_t off;

	if (!ranges_overlap(s->send.ptr, s->send.size, s->recv.ptr, s->recv.size)) {
		return 0;
	}
	off = in_place_offset(args, comm, s->send.elem);
	if (small == large + off) {
		s->in_place = true;
		s->copy_send = args->kind == COLL_ALLTOALL || args->kind == COLL_ALLTOALLV;
		return 0;
	}
	if (s->recv.n > 0 && s->send.n == 0 && !blocks_overlap(&s->recv, &s->send)) {
		return 0;
	}
	if (s->send.n > 0 && s->recv.n == 0 && !blocks_overlap(&s->send, &s->recv)) {
		return 0;
	}
	return error_set(ROCE_ERR_INVALID,
			 "%s: send [%p, +%zu) and recv [%p, +%zu) overlap; in place needs %s == "
			 "%s + %zu bytes, otherwise they must be apart",
			 coll_kind_name(args->kind), (void *)s->send.ptr, s->send.size,
			 (void *)s->recv.ptr, s->recv.size, send_larger ? "recv" : "send",
			 send_larger ? "send" : "recv", off);
}

int check_args(const struct post_args *args, const struct roce_comm *comm, struct post_shape *ret)
{
	struct post_shape s = {.in_place = false};
	size_t elem = dtype_size((unsigned int)args->dtype);
	int r;

	if (args->kind != COLL_BARRIER && elem == 0) {
		return error_set(ROCE_ERR_INVALID,
				 "%s: dtype %d is not an enum roce_dtype (ROCE_I8 0 .. "
				 "ROCE_F8E5M2 %d)",
				 coll_kind_name(args->kind), args->dtype, ROCE_F8E5M2);
	}
	if ((coll_kind_has_root(args->kind) || coll_kind_is_p2p(args->kind)) &&
	    (args->root < 0 || args->root >= comm->size)) {
		return error_set(ROCE_ERR_INVALID,
				 "%s: %s %d is not a rank of this communicator (0 .. %d)",
				 coll_kind_name(args->kind),
				 args->kind == COLL_SEND   ? "destination"
				 : args->kind == COLL_RECV ? "source"
							   : "root",
				 args->root, comm->size - 1);
	}
	s.send.elem = elem;
	s.recv.elem = elem;
	r = coll_kind_is_v(args->kind) ? check_v(args, comm, &s) : check_blocks(args, comm, &s);
	if (r != 0) {
		return r;
	}
	s.nests = !coll_kind_is_v(args->kind) && args->kind != COLL_ALLTOALL;
	s.nest = s.nests ? in_place_offset(args, comm, elem) : 0;
	if (args->kind == COLL_BROADCAST) {
		s.in_place = true; /* one buffer for both sides */
	} else {
		r = check_overlap(args, comm, &s);
		if (r != 0) {
			return r;
		}
	}
	*ret = s;
	return 0;
}
