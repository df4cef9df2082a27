/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Status as text: what people read
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#ifndef ROCECTL_STATUS_TEXT_H
#define ROCECTL_STATUS_TEXT_H

#include <stdbool.h>

#include "tools/rocectl/snapshot.h"

#define STATUS_LATE_MS 1000 /* waiting so long for a rank is worth an alarm */

/* All of it. Rates are those since @before, which may be NULL. */
void status_text_print(const struct snapshot *now, const struct snapshot *before);
/* Only communicators that wait or failed. Return: is there any? */
bool status_text_print_wrong(const struct snapshot *now);
/* One line a communicator. */
void status_text_print_jobs(const struct snapshot *now);

#endif
