/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Status of one communicator as JSON: who has posted what, and who is waited for
 *
 * Late is who has not posted the oldest operation that somebody waits for. When one rank is ahead
 * of seven, the seven are late. What hosts have not answered is said to be unknown.
 *
 * Thread: control      Owns: nothing      Locks: none      See: status_json.h for the members
 */
#ifndef ROCECOMM_CONTROL_STATUS_COMM_H
#define ROCECOMM_CONTROL_STATUS_COMM_H

#include "control/json.h"
#include "control/status_json.h"

/* @survey: NULL: only this host's ranks are known. */
void status_comm_put(struct json *j, const struct communicator *c,
		     const struct status_survey *survey);
/* For qsort() of pointers: by name, then by age. */
int status_comm_compare(const void *a, const void *b);

#endif
