/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Link model: the built-in ones and their costs, see link.h
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "tools/simulate/link.h"

#include <stdio.h>
#include <string.h>

#include "engine/op.h"
#include "proto/base.h"

#define KEY(member, min, help)                                          \
	{                                                               \
#member, offsetof(struct link_model, member), min, help \
	}

const struct link_key link_keys[] = {
	KEY(alpha_us, 0, "one way between two NICs, for the first byte of a message, in us"),
	KEY(gbit, 1e-3, "bandwidth of one rail in each direction, in Gbit/s"),
	KEY(rails, 1, "NICs of a host; a message takes the one that is free first"),
	KEY(rack, 0, "hosts of a rack; 0: one switch that blocks nothing"),
	KEY(oversub, 1, "of a rack's uplinks: 4 means a quarter of what its hosts can send"),
	KEY(cores, 0, "that the progress threads of all hosts share; 0: each host has its own"),
	KEY(send_us, 0, "work of the progress thread for a message that leaves, in us"),
	KEY(recv_us, 0, "work of the progress thread for a message that arrives, in us"),
	KEY(stack_GBps, 0, "copies within the transport on either side, in GB/s; 0: none (RDMA)"),
	KEY(copy_GBps, 0, "copying on the host, in GB/s; 0: takes no time"),
	KEY(reduce_GBps, 0, "adding one source to a result, in GB/s; 0: takes no time"),
	KEY(op_us, 0, "from posting to the first step, and from the last one to the waiting rank"),
	KEY(rank_us, 0, "the same for each further rank of the host"),
	KEY(chunk_kib, 1, "longest message of a segmented plan, in KiB"),
	KEY(eager_kib, 0, "operations with messages up to this long need no grant, in KiB"),
	KEY(scratch_kib, 1, "scratch of one segment, in KiB"),
};
const size_t link_nkeys = ARRAY_SIZE(link_keys);

#define SCRATCH_KIB ((double)COMM_TEMP / OP_RUNS / 1024)
/* What the daemon's configuration says unless it is told otherwise. */
#define DEFAULTS .chunk_kib = 256, .eager_kib = 64, .scratch_kib = SCRATCH_KIB
#define ONE_SWITCH .rails = 1, .rack = 0, .oversub = 1
#define ROCE(label, speed, latency)                                                              \
	{                                                                                        \
		.name = label, .alpha_us = latency, .gbit = speed, ONE_SWITCH, .send_us = 0.4,   \
		.recv_us = 0.4, .stack_GBps = 0, .copy_GBps = 10, .reduce_GBps = 12, .op_us = 2, \
		.rank_us = 0.3, DEFAULTS                                                         \
	}

const struct link_model link_models[] = {
	/*
	 * Fitted to 2 hosts between namespaces (tests/model/measure) and rounded, with a wire of
	 * 100 Gbit/s instead of none.
	 */
	{.name = "tcp",
	 .alpha_us = 6,
	 .gbit = 100,
	 ONE_SWITCH,
	 .send_us = 3,
	 .recv_us = 3,
	 .stack_GBps = 6,
	 .copy_GBps = 10,
	 .reduce_GBps = 9,
	 .op_us = 4,
	 .rank_us = 1.5,
	 DEFAULTS},
	ROCE("roce-10", 10, 2.5),
	ROCE("roce-25", 25, 2.2),
	ROCE("roce-100", 100, 2),
	ROCE("roce-400", 400, 2),
};
const size_t link_nmodels = ARRAY_SIZE(link_models);

uint32_t link_runs(void)
{
	return OP_RUNS;
}

const struct link_model *link_find(const char *name)
{
	for (size_t i = 0; i < link_nmodels; i++) {
		if (strcmp(link_models[i].name, name) == 0) {
			return &link_models[i];
		}
	}
	return NULL;
}

double *link_value(struct link_model *m, const struct link_key *key)
{
	return (double *)((char *)m + key->offset);
}

/**
 * link_set() - change one value of a model
 * @m:         changed on success only
 * @text:      borrowed, "key=value"
 * @err:       gets a sentence on failure
 * @err_size:  bytes of @err
 *
 * Return: 0 or -EINVAL.
 */
int link_set(struct link_model *m, const char *text, char *err, size_t err_size)
{
	size_t len = strcspn(text, "=");

	for (size_t i = 0; i < link_nkeys; i++) {
		const struct link_key *key = &link_keys[i];
		char *end;
		double value;

		if (strlen(key->name) != len || strncmp(key->name, text, len) != 0) {
			continue;
		}
		value = text[len] ? strtod(text + len + 1, &end) : 0;
		if (!text[len] || end == text + len + 1 || *end || !(value >= key->min) ||
		    value > 1e9) {
			snprintf(err, err_size, "'%s': %s is a number from %g to 1e9", text,
				 key->name, key->min);
			return -EINVAL;
		}
		*link_value(m, key) = value;
		return 0;
	}
	snprintf(err, err_size, "'%s': a link model has no key '%.*s'", text, (int)len, text);
	return -EINVAL;
}

uint64_t link_us_ps(double us)
{
	return (uint64_t)(us * LINK_PS_US + 0.5);
}

uint64_t link_bytes_ps(uint64_t bytes, double GBps)
{
	return GBps > 0 ? (uint64_t)((double)bytes * 1000 / GBps + 0.5) : 0;
}

uint64_t link_wire_ps(const struct link_model *m, uint64_t bytes)
{
	return link_bytes_ps(bytes, m->gbit / 8);
}

uint64_t link_uplink_ps(const struct link_model *m, uint64_t bytes)
{
	return link_bytes_ps(bytes, m->gbit / 8 * m->rails * m->rack / m->oversub);
}
