/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Device: operations on memory of GPUs
 *
 * A plan knows nothing of GPUs. Each run of one, a segment of the operation, has staging memory
 * for every block of a buffer that is on a GPU: copy engines fill it before the first step of the
 * run and empty it behind the last, while other runs are on the wire. op_ref() gives the staging
 * address instead of the buffer's. So every collective works, in place or not, whatever other
 * ranks have their buffers in.
 *
 * What goes in and what comes out have places of their own, so that in place or not is all the same
 * here. Until its input is there a run has nowhere to put what arrives, hence grants wait for that.
 *
 * Where all ranks get the same result (allreduce, all-gather, broadcast) and the plan admits it,
 * those whose GPUs are near each other share one place for it, which all these GPUs read: a CPU
 * writes it once, not once a rank.
 *
 * Messages of a plan that is not cut into segments (gather, scatter) are staged as a whole. Sends
 * and receives are staged in parts (p2p.h).
 *
 * Staging memory is bounded (enum gpu_staging_use). An operation takes what it can have of it, for
 * one run at least, or waits until others are over. A send takes it when its receiver is ready, so
 * that it holds it no longer than the wire needs.
 *
 * A copy holds its operation as a message on a stream does (op_ctx.held).
 *
 * Between GPUs of one host copy engines move data straight where they may and where it pays
 * (device_peer.c), in operations that only move data among ranks of this host. Sums are the CPU's,
 * and what another host sends is in memory of this one: these are staged.
 *
 * Thread: progress, but for the function that describes copies      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_ENGINE_DEVICE_H
#define ROCECOMM_ENGINE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu/gpu.h"

struct engine_comm;
struct engine_region;
struct op_ctx;
struct op_run;
struct p2p;
struct p2p_part;
struct plan_ref;
struct post;
struct progress;

/* A job, and who wants to know of its end. */
struct device_job {
	struct gpu_job job;
	void (*end)(struct device_job *job);
	struct op_run *run; /* of an operation */
	uint32_t group;
	/* From GPU to GPU: the operation, and the copying thread's place in its plan. */
	struct op_ctx *ctx;
	uint32_t piece, dst;
};

/* Its GPU's thread has it from now on; `end`, and of `job` what is to be done, are filled in. */
void device_job_go(struct progress *p, struct gpu_device *gpu, struct device_job *j);

/* A rank's send or receive buffer. */
struct device_side {
	bool staged;
	uint32_t group; /* whose copy engines move it */
	uint32_t place; /* the group in whose staging memory it is */
	uint32_t nblocks;
	uint64_t off; /* in a run's part of that */
};

/* What an operation has on one GPU. */
struct device_group {
	struct gpu_device *gpu;
	uint64_t run_size; /* staging memory of a run */
	uint64_t size;	   /* of all runs */
	uint8_t *base;
	uint32_t npieces[2]; /* blocks to fill, to empty */
};

struct device_op {
	uint32_t ngroups;
	uint32_t nruns;
	bool direct;	      /* copies from GPU to GPU do all of it */
	bool direct_failed;   /* one of them */
	uint32_t direct_jobs; /* of them that are not back */
	uint64_t direct_bytes;
	uint64_t stride;	     /* bytes between blocks of a segment */
	struct device_group *groups; /* [2 * nlocal] */
	struct device_side *sides;   /* [2 * nlocal], by rank, then in and out */
	struct device_job *jobs;     /* [OP_DEVICE_RUNS * 2 * nlocal], by run */
};

enum device_phase {
	DEVICE_STEPS = 0, /* the run is with its plan */
	DEVICE_FILL = 1,
	DEVICE_EMPTY = 2,
};

/* Control thread: what a communicator's operations need, all of it address space only. */
int device_comm_init(struct engine_comm *c);
void device_comm_deinit(struct engine_comm *c);

enum { DEVICE_E_LATER = 1, DEVICE_E_REFUSED = 2 };
/*
 * @ctx: shaped, with its temp_slot, not yet launched. Takes staging memory if the operation needs
 * any. Return: 0; DEVICE_E_LATER: the progress thread looks again when some comes back;
 * DEVICE_E_REFUSED with a reason.
 */
int device_admit(struct op_ctx *ctx, const char **ret_reason);
void device_release(struct op_ctx *ctx);
/* Starts copies of a run's input, its output. Return: false: there is nothing to copy. */
bool device_fill(struct op_run *run);
bool device_empty(struct op_run *run);
/* Where a block of a staged buffer is in a run. NULL: it is not staged. */
uint8_t *device_ref(const struct op_ctx *ctx, const struct op_run *run, const struct plan_ref *ref,
		    uint64_t first, uint64_t lo);
/* Takes back what has been copied. Return: how many jobs. */
int device_reap(struct progress *p);

/* ---- from GPU to GPU (device_peer.c) ------------------------------------------------------- */

/* Can copies from GPU to GPU do all of it? What is not known yet is asked for on the way. */
bool device_direct(const struct op_ctx *ctx);
/* Starts them; the operation ends with them, or goes through the host when one fails. */
void device_direct_start(struct op_ctx *ctx);
/* The same for a send and the receive of its partner. Return: false: it cannot. */
bool device_p2p_direct(struct p2p *x, struct p2p *y);

/* ---- sends and receives ------------------------------------------------------------------- */

/* Is the buffer on a GPU? */
bool device_p2p(const struct p2p *x);
/* Gets staging memory for a part. Return: false: not now. */
bool device_part_stage(struct p2p *x, struct p2p_part *part);
/* Copies a part between buffer and staging memory; p2p_copied() comes. */
void device_part_copy(struct p2p_part *part);
void device_p2p_release(struct p2p *x);

#endif
