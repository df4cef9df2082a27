/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Kernel levels of other CPUs: the base kernels alone (twin of reduce_x86.c)
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "daemon/reduce/reduce_impl.h"
#include "proto/base.h"

static bool generic_usable(void)
{
	return true;
}

const struct reduce_level reduce_levels[] = {
	{"generic", &reduce_kernels_base, generic_usable},
};
const size_t reduce_nlevels = ARRAY_SIZE(reduce_levels);
