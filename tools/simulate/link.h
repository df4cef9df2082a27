/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Link model: what moving, combining and announcing bytes costs
 *
 * A message of m bytes first takes its sender's progress thread (send_us, and m bytes of copies in
 * the transport's stack), then one rail of the sender's NIC for m / gbit, is seen alpha_us later at
 * the receiver's NIC, occupies the same rail there for as long, and then takes the receiver's
 * progress thread, which copies or reduces what arrived. With racks, messages between them share
 * the uplinks, which have rack * rails * gbit / oversub in each direction. Hosts that are
 * namespaces of one machine share its cores: only so many progress threads are at work at once.
 *
 * Times are integers in picoseconds, so a run is the same on every machine.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_SIMULATE_LINK_H
#define ROCECOMM_SIMULATE_LINK_H

#include <stddef.h>
#include <stdint.h>

#define LINK_PS_US 1000000u

/* Every member but the name is a double, so that a table can describe them (link_keys). */
struct link_model {
	char name[32];
	double alpha_us;
	double gbit;
	double rails;
	double rack;
	double oversub;
	double cores;
	double send_us;
	double recv_us;
	double stack_GBps;
	double copy_GBps;
	double reduce_GBps;
	double op_us;
	double rank_us;
	double chunk_kib;
	double eager_kib;
	double scratch_kib;
};

struct link_key {
	const char *name;
	size_t offset;
	double min; /* smallest value that is allowed */
	const char *help;
};

extern const struct link_key link_keys[];
extern const size_t link_nkeys;
extern const struct link_model link_models[];
extern const size_t link_nmodels;

/* Segments of one operation in flight: what the engine has. */
uint32_t link_runs(void);

/* Return: the built-in model of that name, or NULL. */
const struct link_model *link_find(const char *name);
/* @text: "key=value". Return: 0, or -EINVAL with a sentence in @err. */
int link_set(struct link_model *m, const char *text, char *err, size_t err_size);
double *link_value(struct link_model *m, const struct link_key *key);

/* Picoseconds that @bytes take at @GBps; nothing at 0, which stands for no limit. */
uint64_t link_bytes_ps(uint64_t bytes, double GBps);
uint64_t link_us_ps(double us);
/* On one rail. */
uint64_t link_wire_ps(const struct link_model *m, uint64_t bytes);
/* Through the uplinks of a rack. */
uint64_t link_uplink_ps(const struct link_model *m, uint64_t bytes);

#endif
