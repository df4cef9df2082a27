/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Derivation: the selection table that a link model asks for
 *
 * Every algorithm is predicted for ranges of hosts (a power of two and what lies behind it), 1 and
 * 8 ranks a host (only 8 from 1,024 hosts on) and all powers of two of bytes. Each range and size
 * has a price for each algorithm: by how much it is slower than the fastest, as the mean of
 * logarithms. The table is the one with the least sum of prices and of DERIVE_ROW for every row
 * that it has, so a threshold is only there when it pays. When that is too many rows, they become
 * dearer.
 *
 * Thread: main      Owns: what it returns      Locks: none
 */
#ifndef ROCECOMM_SIMULATE_DERIVE_H
#define ROCECOMM_SIMULATE_DERIVE_H

#include <stdio.h>

#include "tools/simulate/predict.h"

#define DERIVE_ROW 0.1 /* of a row: ten percent of one size in one range of hosts */
#define DERIVE_MAX_ROWS 256

struct derived {
	uint32_t nrows;
	struct coll_rule rows[DERIVE_MAX_ROWS];
	double regret; /* the mean price of a size in a range, and the largest */
	double worst;
	double row; /* what a row cost in the end */
	uint64_t events;
};

enum derive_form {
	DERIVE_TABLE, /* Markdown */
	DERIVE_DEF,   /* daemon/coll/select.def */
	DERIVE_RULES, /* the configuration's `algorithms` */
};

/* Kinds whose algorithm must be chosen, without those that take the table of another one. */
uint32_t derive_kinds(void);
/*
 * @kinds: bits; kinds with one algorithm get one row. @max_rows: at most DERIVE_MAX_ROWS, at least
 * one a kind. Return: 0 or a negative errno.
 */
int derive(const struct link_model *m, uint32_t kinds, uint32_t max_rows, struct derived *ret);
void derive_print(const struct derived *d, const struct link_model *m, enum derive_form form,
		  FILE *out);

#endif
