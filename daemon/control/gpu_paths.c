/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * GPU paths: implementation
 *
 * Two MiB are registered and given back at once, here, on the control thread: that takes a fraction
 * of a millisecond. The GPU's part, which may take longer, is done by the "gpu" thread.
 *
 * Thread: control      Owns: see gpu_paths.h      Locks: none
 */
#include "control/gpu_paths.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base.h"
#include "util/log.h"

struct look {
	struct gpu_trial trial;
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

/* In order: by dma-buf, by address. */
static void try_device(struct gpu_path *row, const struct gpu_trial *t, struct rdma_device *d)
{
	struct rdma_mem *m;

	if (!t->address) {
		snprintf(row->reason, sizeof(row->reason), "not tried: %s", t->text);
		return;
	}
	if (rdma_mem_new(NULL, (void *)(uintptr_t)t->address, t->size, &m) < 0) {
		snprintf(row->reason, sizeof(row->reason), "not tried: the daemon has no memory");
		return;
	}
	if (t->fd >= 0) {
		row->way = rdma_mem_add_dmabuf(m, d, t->fd, 0);
	} else {
		row->way = rdma_mem_add_device(m, d) == 0 ? RDMA_MEM_PEER : RDMA_MEM_NONE;
	}
	switch (row->way) {
	case RDMA_MEM_DMABUF:
		snprintf(row->reason, sizeof(row->reason), "registers its memory by dma-buf");
		break;
	case RDMA_MEM_PEER:
		snprintf(row->reason, sizeof(row->reason),
			 "registers its memory by address (a peer memory module); by dma-buf: %s",
			 t->fd < 0	? t->text
			 : m->reason[0] ? m->reason
					: "the device refuses that");
		break;
	default:
		snprintf(row->reason, sizeof(row->reason),
			 "registers its memory neither by dma-buf nor by address: %s%s%s; NVIDIA's "
			 "open kernel modules give dma-bufs to a device whose driver takes them, "
			 "nvidia-peermem lets it register addresses",
			 t->text, t->text[0] && m->reason[0] ? "; " : "", m->reason);
		break;
	}
	rdma_mem_free(m);
}

static void look_next(struct look *l);

static void trial_done(struct gpu_trial *t)
{
	struct look *l = container_of(t, struct look, trial);

	for (uint32_t i = 0; i < l->devices->count; i++) {
		struct rdma_device *d = l->devices->devices[i];
		struct gpu_path *row;

		if (!is_there(d) || is_tried(l->paths, t->uuid, d)) {
			continue;
		}
		row = row_new(l->paths, t->uuid, d);
		if (row) {
			try_device(row, t, d);
			log_info("%s and the memory of GPUs: %s", d->name, row->reason);
		}
	}
	t->fd = base_close(t->fd);
	look_next(l);
}

/* A GPU with a device that was not tried on it. Return: false: there is none. */
static bool find_untried(const struct look *l, struct gpu_status *ret)
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

static void look_next(struct look *l)
{
	struct gpu_status s;

	if (l->left-- > 0 && find_untried(l, &s)) {
		l->trial.done = trial_done;
		memcpy(l->trial.uuid, s.id, sizeof(l->trial.uuid));
		gpu_trial(l->gpu, &l->trial);
		return;
	}
	l->done(l->arg);
	free(l);
}

/* See gpu_paths.h. */
void gpu_paths_look(struct gpu_paths *paths, struct gpu *gpu, const struct rdma *devices,
		    void (*done)(void *arg), void *arg)
{
	struct look *l = calloc(1, sizeof(*l));

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
