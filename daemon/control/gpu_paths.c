/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * GPU paths: implementation
 *
 * The GPU's part of a trial, which may take long, is done by the "gpu" thread; registering, which
 * may never return, by threads of a round (gpu_round.h). One look goes on at a time, so that each
 * pair is tried once; the others wait.
 *
 * Thread: control      Owns: see gpu_paths.h      Locks: none
 */
#include "control/gpu_paths.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control/gpu_round.h"
#include "proto/base.h"
#include "util/log.h"

struct gpu_paths_look {
	struct gpu_paths_look *next;
	struct gpu_trial trial;
	struct gpu_round *round; /* NULL: none is under way */
	char bus[32];		 /* of the GPU that is tried */
	struct gpu_paths *paths;
	struct gpu *gpu;
	const struct rdma *devices;
	void (*done)(void *arg);
	void *arg;
	unsigned int left; /* trials, so that a GPU that is always refused ends it */
};

void gpu_paths_deinit(struct gpu_paths *paths)
{
	free(paths->rows);
	*paths = (struct gpu_paths){0};
}

/* ---- trials -------------------------------------------------------------------------------- */

static bool is_tried(const struct gpu_paths *paths, const uint8_t *gpu, const struct rdma_device *d)
{
	for (size_t i = 0; i < paths->n; i++) {
		if (paths->rows[i].index == d->index &&
		    memcmp(paths->rows[i].gpu, gpu, GPU_UUID_BYTES) == 0) {
			return true;
		}
	}
	return false;
}

static bool is_there(const struct rdma_device *d)
{
	return d->context && !d->gone;
}

static struct gpu_path *row_new(struct gpu_paths *paths, const uint8_t *gpu,
				const struct rdma_device *d)
{
	struct gpu_path *rows = realloc(paths->rows, (paths->n + 1) * sizeof(*rows));
	struct gpu_path *row;

	if (!rows) {
		return NULL;
	}
	paths->rows = rows;
	row = &rows[paths->n++];
	memset(row, 0, sizeof(*row));
	memcpy(row->gpu, gpu, GPU_UUID_BYTES);
	row->index = d->index;
	snprintf(row->device, sizeof(row->device), "%s", d->name);
	return row;
}

/* What came of a trial, as a sentence behind the device's name. */
static void say_way(struct gpu_path *row, const struct gpu_trial *t,
		    const struct gpu_round_result *r)
{
	if (r->stalled) {
		snprintf(row->reason, sizeof(row->reason),
			 "did not end a trial with its memory: registering %" PRIu64
			 " KiB had not returned in time, so the pair is staged until the daemon is "
			 "started anew",
			 t->size / 1024);
	} else if (r->untried) {
		snprintf(row->reason, sizeof(row->reason), "not tried: %s", r->refusal);
	} else if (r->way == RDMA_MEM_DMABUF) {
		snprintf(row->reason, sizeof(row->reason), "registers its memory by dma-buf");
	} else if (r->way == RDMA_MEM_PEER) {
		snprintf(row->reason, sizeof(row->reason),
			 "registers its memory by address (a peer memory module); by dma-buf: %s",
			 t->fd < 0	 ? t->text
			 : r->refusal[0] ? r->refusal
					 : "the device refuses that");
	} else {
		snprintf(row->reason, sizeof(row->reason),
			 "registers its memory neither by dma-buf nor by address: %s%s%s; NVIDIA's "
			 "open kernel modules give dma-bufs to a device whose driver takes them, "
			 "nvidia-peermem lets it register addresses",
			 t->text, t->text[0] && r->refusal[0] ? "; " : "", r->refusal);
	}
}

/* What is in the way of a pair that would otherwise be direct. Others have no use for it. */
static void say_route(struct gpu_path *row, const struct gpu_round_result *r)
{
	row->route = r->route;
	if (r->way == RDMA_MEM_NONE && !r->stalled) {
		return;
	}
	pci_route_warning(&r->route, row->warning, sizeof(row->warning));
	pci_route_unseen(&r->route, row->unseen, sizeof(row->unseen));
	if (row->warning[0]) {
		log_warn("%s and the memory of GPUs: %s", row->device, row->warning);
	}
	if (row->unseen[0]) {
		log_info("%s and the memory of GPUs: %s", row->device, row->unseen);
	}
}

static void take_result(struct gpu_paths_look *l, const struct gpu_round_result *r)
{
	struct rdma_device *d = l->devices->devices[r->index];
	struct gpu_path *row = row_new(l->paths, l->trial.uuid, d);

	if (!row) {
		return;
	}
	row->way = r->stalled || r->untried ? RDMA_MEM_NONE : r->way;
	row->stalled = r->stalled;
	say_way(row, &l->trial, r);
	if (row->stalled) {
		log_warn("%s and the memory of GPUs: %s", d->name, row->reason);
	} else {
		log_info("%s and the memory of GPUs: %s", d->name, row->reason);
	}
	say_route(row, r);
	for (size_t i = 0; i < RDMA_REFUSAL_COUNT_; i++) {
		/* relaxed: only rocectl reads it */
		atomic_fetch_add_explicit(&d->refused[i], r->refused[i], memory_order_relaxed);
	}
}

static void look_next(struct gpu_paths_look *l);

static void round_done(void *arg)
{
	struct gpu_paths_look *l = arg;
	const struct gpu_round_result *results;
	uint32_t n = gpu_round_results(l->round, &results);

	for (uint32_t i = 0; i < n; i++) {
		take_result(l, &results[i]);
	}
	l->round = gpu_round_free(l->round);
	l->trial.fd = base_close(l->trial.fd);
	look_next(l);
}

/* Its trial with another GPU did not end: no more threads are given to it. */
static bool has_stalled(const struct gpu_paths *paths, const struct rdma_device *d)
{
	for (size_t i = 0; i < paths->n; i++) {
		if (paths->rows[i].index == d->index && paths->rows[i].stalled) {
			return true;
		}
	}
	return false;
}

/* A pair that no round is for. */
static void leave_out(struct gpu_paths_look *l, const struct rdma_device *d, const char *why)
{
	struct gpu_path *row = row_new(l->paths, l->trial.uuid, d);

	if (row) {
		snprintf(row->reason, sizeof(row->reason), "not tried: %s", why);
		log_info("%s and the memory of GPUs: %s", d->name, row->reason);
	}
}

/* The GPU's part is done. */
static void trial_done(struct gpu_trial *t)
{
	struct gpu_paths_look *l = container_of(t, struct gpu_paths_look, trial);
	const struct gpu_paths *p = l->paths;

	if (t->address) {
		gpu_round_new(l->gpu, t, p->tree ? p->tree : &pci_tree_system, l->bus, &l->round);
	}
	for (uint32_t i = 0; i < l->devices->count; i++) {
		const struct rdma_device *d = l->devices->devices[i];

		if (!is_there(d) || is_tried(p, t->uuid, d)) {
			continue;
		}
		if (!t->address || !l->round) {
			leave_out(l, d, t->address ? "the daemon has no memory" : t->text);
		} else if (has_stalled(p, d)) {
			leave_out(l, d, "its trial with another GPU did not end");
		} else {
			gpu_round_add(l->round, d);
		}
	}
	if (l->round && gpu_round_results(l->round, NULL) > 0) {
		gpu_round_run(l->round, p->trial_ms ? p->trial_ms : GPU_ROUND_MS, round_done, l);
		return;
	}
	l->round = gpu_round_free(l->round);
	t->fd = base_close(t->fd);
	look_next(l);
}

/* A GPU with a device that was not tried on it. Return: false: there is none. */
static bool find_untried(const struct gpu_paths_look *l, struct gpu_status *ret)
{
	for (unsigned int i = 0; l->devices && l->gpu && gpu_get_status(l->gpu, i, ret); i++) {
		for (uint32_t k = 0; k < l->devices->count; k++) {
			const struct rdma_device *d = l->devices->devices[k];

			if (is_there(d) && !is_tried(l->paths, ret->id, d)) {
				return true;
			}
		}
	}
	return false;
}

/* Return: false: there is nothing left to try. */
static bool look_try(struct gpu_paths_look *l)
{
	struct gpu_status s;

	if (l->left == 0 || !find_untried(l, &s)) {
		return false;
	}
	l->left--;
	l->trial.done = trial_done;
	memcpy(l->trial.uuid, s.id, sizeof(l->trial.uuid));
	memcpy(l->bus, s.bus, sizeof(l->bus));
	gpu_trial(l->gpu, &l->trial);
	return true;
}

/* Goes on with the oldest look, and after it with those that came meanwhile. */
static void look_next(struct gpu_paths_look *l)
{
	while (l && !look_try(l)) {
		struct gpu_paths_look *next = l->next;

		l->paths->looks = next;
		l->paths->last = next ? l->paths->last : NULL;
		l->done(l->arg); /* whoever comes now stands behind @next */
		free(l);
		l = next;
	}
}

/* See gpu_paths.h. */
void gpu_paths_look(struct gpu_paths *paths, struct gpu *gpu, const struct rdma *devices,
		    void (*done)(void *arg), void *arg)
{
	struct gpu_paths_look *l = calloc(1, sizeof(*l));

	if (!l) {
		done(arg);
		return;
	}
	l->paths = paths;
	l->gpu = gpu;
	l->devices = devices;
	l->done = done;
	l->arg = arg;
	l->left = GPU_MAX_DEVICES;
	if (paths->last) {
		paths->last->next = l;
		paths->last = l;
		return;
	}
	paths->looks = paths->last = l;
	look_next(l);
}

/* ---- what is known ------------------------------------------------------------------------- */

/* See gpu_paths.h. */
void gpu_paths_reason(const struct gpu_paths *paths, const uint8_t *gpu, char *text, size_t size)
{
	const struct gpu_path *found = NULL;

	for (size_t i = 0; i < paths->n; i++) {
		const struct gpu_path *row = &paths->rows[i];

		if (memcmp(row->gpu, gpu, GPU_UUID_BYTES) == 0 &&
		    (!found || (row->way != RDMA_MEM_NONE && found->way == RDMA_MEM_NONE))) {
			found = row;
		}
	}
	if (!found) {
		snprintf(text, size, "no network device here has registered memory of this GPU");
	} else if (found->way == RDMA_MEM_NONE) {
		snprintf(text, size, "%s %s", found->device, found->reason);
	} else {
		snprintf(text, size,
			 "CPUs make the sums; %s could reach the memory itself (%s), which this "
			 "version does not use",
			 found->device, found->way == RDMA_MEM_DMABUF ? "dma-buf" : "peer memory");
	}
}

static void put_bridge(struct json *j, const struct pci_bridge *b)
{
	char bits[64];

	json_open(j, NULL);
	json_string(j, "address", b->address);
	if (b->state == PCI_ACS_READ || b->state == PCI_ACS_ABSENT) {
		pci_acs_text(b->control, bits, sizeof(bits));
		json_string(j, "acs", bits);
	} else {
		json_null(j, "acs");
	}
	json_close(j);
}

static void put_route(struct json *j, const struct pci_route *route)
{
	if (!route->found) {
		json_null(j, "pci");
		return;
	}
	json_open(j, "pci");
	if (route->iommu == PCI_IOMMU_NONE) {
		json_string(j, "iommu", "none");
	} else {
		json_text(j, "iommu", route->iommu_type);
	}
	json_bool(j, "virtual_machine", route->vm);
	json_open_array(j, "bridges");
	for (uint32_t i = 0; i < route->nbridges; i++) {
		put_bridge(j, &route->bridges[i]);
	}
	json_close_array(j);
	json_close(j);
}

static void put_nic(struct json *j, const struct gpu_path *row)
{
	json_open(j, NULL);
	json_string(j, "device", row->device);
	if (row->way == RDMA_MEM_NONE) {
		json_null(j, "registers");
	} else {
		json_string(j, "registers", row->way == RDMA_MEM_DMABUF ? "dma-buf" : "peermem");
	}
	json_string(j, "reason", row->reason);
	json_bool(j, "stalled", row->stalled);
	json_text(j, "warning", row->warning);
	json_text(j, "unseen", row->unseen);
	put_route(j, &row->route);
	json_close(j);
}

static void put_peer(struct json *j, const struct gpu_peer_status *p)
{
	json_open(j, NULL);
	json_string(j, "uuid", p->uuid);
	json_string(j, "path", p->direct ? "direct" : "staged");
	json_string(j, "reason", p->reason);
	json_uint(j, "direct_mbytes_per_second", p->direct_mbytes);
	json_uint(j, "host_mbytes_per_second", p->staged_mbytes);
	json_close(j);
}

/* See gpu_paths.h. */
void gpu_paths_json(struct json *j, const struct gpu_paths *paths, const struct gpu *gpu)
{
	struct gpu_status s;
	struct gpu_peer_status p;
	char reason[sizeof(paths->rows[0].reason) + IBV_SYSFS_NAME_MAX];

	json_open_array(j, "gpus");
	for (unsigned int i = 0; gpu && gpu_get_status(gpu, i, &s); i++) {
		json_open(j, NULL);
		json_string(j, "uuid", s.uuid);
		json_string(j, "name", s.name);
		json_string(j, "path", "staged");
		gpu_paths_reason(paths, s.id, reason, sizeof(reason));
		json_string(j, "reason", reason);
		json_open_array(j, "devices");
		for (size_t k = 0; k < paths->n; k++) {
			if (memcmp(paths->rows[k].gpu, s.id, sizeof(s.id)) == 0) {
				put_nic(j, &paths->rows[k]);
			}
		}
		json_close_array(j);
		json_open_array(j, "peers");
		for (unsigned int k = 0; gpu_get_peer(gpu, i, k, &p); k++) {
			put_peer(j, &p);
		}
		json_close_array(j);
		json_close(j);
	}
	json_close_array(j);
}
