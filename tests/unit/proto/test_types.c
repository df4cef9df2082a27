/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of types: the dtype x op table, written out by hand, and what each operation takes
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <string.h>

#include "proto/base.h"
#include "proto/types.h"

static const struct {
	const char *name;
	unsigned int size;
	bool is_float;
	/* one character an op: sum prod min max avg premul band bor bxor land lor lxor */
	const char *ops;
} dtype_rows[] = {
	{"i8", 1, false, "xxxxxxxxxxxx"},    {"u8", 1, false, "xxxxxxxxxxxx"},
	{"i16", 2, false, "xxxxxxxxxxxx"},   {"u16", 2, false, "xxxxxxxxxxxx"},
	{"i32", 4, false, "xxxxxxxxxxxx"},   {"u32", 4, false, "xxxxxxxxxxxx"},
	{"i64", 8, false, "xxxxxxxxxxxx"},   {"u64", 8, false, "xxxxxxxxxxxx"},
	{"f16", 2, true, "xxxxxx------"},    {"bf16", 2, true, "xxxxxx------"},
	{"f32", 4, true, "xxxxxx------"},    {"f64", 8, true, "xxxxxx------"},
	{"f8e4m3", 1, true, "------------"}, {"f8e5m2", 1, true, "------------"},
};

static const char *const op_names[] = {"sum",  "prod", "min",  "max",  "avg", "premul-sum",
				       "band", "bor",  "bxor", "land", "lor", "lxor"};

/* One character a property: reduces, has root, is v, is point to point. */
static const struct {
	const char *name;
	const char *takes;
} kind_rows[] = {
	{"allreduce", "r..."},	    {"reduce", "rR.."},
	{"broadcast", ".R.."},	    {"allgather", "...."},
	{"reduce-scatter", "r..."}, {"gather", ".R.."},
	{"scatter", ".R.."},	    {"alltoall", "...."},
	{"allgatherv", "..v."},	    {"reduce-scatterv", "r.v."},
	{"gatherv", ".Rv."},	    {"scatterv", ".Rv."},
	{"alltoallv", "..v."},	    {"barrier", "...."},
	{"send", "...p"},	    {"recv", "...p"},
};

Test(types, dtype_by_op)
{
	cr_assert_eq(ARRAY_SIZE(dtype_rows), DTYPE_COUNT_);
	cr_assert_eq(ARRAY_SIZE(op_names), REDOP_COUNT_);
	for (unsigned int t = 0; t < DTYPE_COUNT_; t++) {
		cr_assert_str_eq(dtype_name(t), dtype_rows[t].name);
		cr_assert_eq(dtype_size(t), dtype_rows[t].size);
		cr_assert_eq(dtype_is_float(t), dtype_rows[t].is_float);
		for (unsigned int op = 0; op < REDOP_COUNT_; op++) {
			cr_assert_eq(redop_supports(op, t), dtype_rows[t].ops[op] == 'x',
				     "%s of %s", redop_name(op), dtype_name(t));
		}
	}
	for (unsigned int op = 0; op < REDOP_COUNT_; op++) {
		cr_assert_str_eq(redop_name(op), op_names[op]);
	}
}

Test(types, kinds)
{
	cr_assert_eq(ARRAY_SIZE(kind_rows), COLL_COUNT_);
	for (unsigned int k = 0; k < COLL_COUNT_; k++) {
		const char *takes = kind_rows[k].takes;

		cr_assert_str_eq(coll_kind_name(k), kind_rows[k].name);
		cr_assert_eq(coll_kind_reduces(k), takes[0] == 'r', "%s", coll_kind_name(k));
		cr_assert_eq(coll_kind_has_root(k), takes[1] == 'R', "%s", coll_kind_name(k));
		cr_assert_eq(coll_kind_is_v(k), takes[2] == 'v', "%s", coll_kind_name(k));
		cr_assert_eq(coll_kind_is_p2p(k), takes[3] == 'p', "%s", coll_kind_name(k));
	}
}

/* A hostile client writes any byte. */
Test(types, any_byte)
{
	for (unsigned int a = 0; a < 256; a++) {
		cr_assert_not_null(dtype_name(a));
		cr_assert_not_null(redop_name(a));
		cr_assert_not_null(coll_kind_name(a));
		for (unsigned int b = 0; b < 256; b++) {
			if (a >= REDOP_COUNT_ || b >= DTYPE_COUNT_) {
				cr_assert_not(redop_supports(a, b));
			}
		}
		if (a >= DTYPE_COUNT_) {
			cr_assert_eq(dtype_size(a), 0);
			cr_assert_not(dtype_is_float(a));
		}
		if (a >= COLL_COUNT_) {
			cr_assert_not(coll_kind_reduces(a) || coll_kind_has_root(a) ||
				      coll_kind_is_v(a) || coll_kind_is_p2p(a));
		}
	}
}
