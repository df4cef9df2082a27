/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Links, paths and checks as text: what people read
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#ifndef ROCECTL_LINKS_TEXT_H
#define ROCECTL_LINKS_TEXT_H

#include "tools/rocectl/snapshot.h"

/* Counters are those since @before, if there is one. */
void links_text_print(const struct snapshot *now, const struct snapshot *before);
void paths_text_print(const struct snapshot *now);
/* Return: is all well? */
bool check_text_print(const struct snapshot *now);

#endif
