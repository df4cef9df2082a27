/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Usage: the text of --help
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef ROCEBENCH_USAGE_H
#define ROCEBENCH_USAGE_H

/* Never NULL. */
const char *usage_text(void);

#endif
