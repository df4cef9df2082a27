/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Snapshot: what the daemon said at one moment, parsed, and how to print its values
 *
 * The members are those of `rocectl status --json` (rocectl(1)). A member that an older daemon does
 * not send reads as 0 or "".
 *
 * Thread: main      Owns: the parsed text      Locks: none
 */
#ifndef ROCECTL_SNAPSHOT_H
#define ROCECTL_SNAPSHOT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "tools/rocectl/admin.h"

struct snapshot {
	json_t *root; /* without control characters, which a terminal would obey */
	char *text;   /* as the daemon sent it */
	double at;    /* monotonic seconds */
	bool own;     /* only the caller's jobs */
};

/* Return: enum rocectl_exit; failures are printed. */
int snapshot_take(struct admin *admin, struct snapshot *ret);
/* Of another text than the status; consumed in any case. */
int snapshot_parse(char *text, struct snapshot *ret);
void snapshot_deinit(struct snapshot *s);

const char *snapshot_string(const json_t *object, const char *key);
json_int_t snapshot_number(const json_t *object, const char *key);
/* The communicator with the uid of @comm in another snapshot, NULL: not there. */
const json_t *snapshot_same_comm(const struct snapshot *s, const json_t *comm);
/* Does a communicator wait so long for a rank, or has it failed, that somebody should know? */
bool snapshot_is_late(const json_t *comm, json_int_t ms);

/* "1.5 GiB", "12.3 s", "0-3,5"; at most @size bytes. */
const char *text_bytes(double bytes, char *buf, size_t size);
const char *text_ms(json_int_t ms, char *buf, size_t size);

#endif
