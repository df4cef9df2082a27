/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Rails: devices of this host
 *
 * A device is handed to the engine when it has a port that can be used, and taken back when it is
 * gone, or when a reload of the configuration denies all its ports. Its events are read here and go
 * on to the progress thread; what they mean for ports and GIDs is looked at a moment later, when
 * the others that came with it are there, too. Devices that are plugged in are announced by the
 * kernel (uevents).
 *
 * Thread: control      Owns: see rails.h      Locks: none
 */
#include "job/rails.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/netlink.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "job/rails_impl.h"
#include "proto/base.h"
#include "topo/rdma_mem.h"
#include "util/log.h"

#define EVENTS_MAX 64	/* read in one go */
#define FATAL_MS 1000	/* until a device that broke is looked for again */
#define UEVENT_MAX 8192 /* bytes */

static void on_soon(uv_timer_t *timer);
static void adopt(struct rails *rails);

static void look_soon(struct rails *rails, uint64_t ms)
{
	if (rails->handles && !rails->closed) {
		uv_timer_start(&rails->soon, on_soon, ms, 0);
	}
}

/* ---- a device ----------------------------------------------------------------------------- */

static void watch_stop(struct rails_watch *w)
{
	if (w->polling) {
		w->polling = false;
		uv_poll_stop(&w->poll);
		uv_close((uv_handle_t *)&w->poll, NULL);
	}
}

static void on_removed(void *arg)
{
	struct rails_watch *w = arg;
	struct rdma_device *d = w->rails->list->devices[w - w->rails->watches];

	w->removing = false;
	log_info("RDMA device %s is not used any more: %s", d->name, d->reason);
	rdma_device_close(d);
}

/* Gone, or broken: nothing of it is used once the engine has answered. */
static void take_back(struct rails_watch *w)
{
	struct rdma_device *d = w->rails->list->devices[w - w->rails->watches];

	watch_stop(w);
	w->refused = false; /* should it come again */
	if (w->adding || w->removing) {
		return; /* on_added() comes here again */
	}
	if (w->ready) {
		w->ready = false;
		w->removing = true;
		engine_device_remove(w->rails->jobs->engine, d, d->reason, on_removed, w);
	} else if (d->context) {
		rdma_device_close(d);
	}
}

static void on_added(void *arg)
{
	struct rails_watch *w = arg;
	struct rdma_device *d = w->rails->list->devices[w - w->rails->watches];

	w->adding = false;
	w->ready = w->work.result == 0;
	if (!w->ready) {
		w->refused = true;
		snprintf(d->reason, sizeof(d->reason), "%.*s", RDMA_REASON - 1, w->work.why);
		log_warn("RDMA device %s cannot be used: %s", d->name, w->work.why);
	}
	/* What has happened to it meanwhile. */
	adopt(w->rails);
	rails_links_changed(w->rails);
}

static void on_denied(void *arg)
{
	struct rails_watch *w = arg;
	struct rdma_device *d = w->rails->list->devices[w - w->rails->watches];

	if (d->gone) {
		on_removed(w);
		return;
	}
	w->removing = false;
	log_info("RDMA device %s is not used any more: denied by the configuration", d->name);
	/* It may be allowed again. */
	adopt(w->rails);
	rails_links_changed(w->rails);
}

/* It stays open, for it is still there. */
static void take_denied(struct rails_watch *w)
{
	struct rdma_device *d = w->rails->list->devices[w - w->rails->watches];

	w->ready = false;
	w->removing = true;
	engine_device_remove(w->rails->jobs->engine, d, "denied by the configuration", on_denied,
			     w);
}

static void device_broken(struct rails_watch *w, const char *text)
{
	struct rdma_device *d = w->rails->list->devices[w - w->rails->watches];

	d->gone = true;
	snprintf(d->reason, sizeof(d->reason), "%s", text);
	rdma_device_update(d, &w->rails->options.devices);
	take_back(w);
	rails_links_changed(w->rails);
	/* It may come back, as another one. */
	look_soon(w->rails, FATAL_MS);
}

static void on_device(uv_poll_t *poll, int status, int events)
{
	struct rails_watch *w = poll->data;
	struct rails *rails = w->rails;
	struct rdma_device *d = rails->list->devices[w - rails->watches];
	struct rdma_event event;
	char text[RDMA_REASON];
	int r = 0;

	for (int n = 0; r == 0 && n < EVENTS_MAX && !d->gone; n++) {
		r = rdma_device_event(d, &event);
		if (r != 0) {
			break;
		}
		log_debug("RDMA device %s port %u: %s", d->name, event.port, event.text);
		if (event.kind == RDMA_EVENT_FATAL) {
			snprintf(text, sizeof(text), "it reported %s", event.text);
			device_broken(w, text);
			return;
		}
		if (w->ready) {
			engine_device_event(rails->jobs->engine, d, &event);
		}
		if (event.kind != RDMA_EVENT_OTHER && event.kind != RDMA_EVENT_QP) {
			look_soon(rails, RAILS_SOON_MS);
		}
	}
	if (r < 0 && r != -EAGAIN) {
		snprintf(text, sizeof(text), "its events cannot be read: %s", strerror(-r));
		device_broken(w, text);
	}
}

static void watch_start(struct rails_watch *w, const struct rdma_device *d)
{
	int fd = rdma_device_fd(d);

	if (w->polling || fd < 0 || uv_poll_init(w->rails->jobs->loop, &w->poll, fd) < 0) {
		return;
	}
	w->poll.data = w;
	w->polling = true;
	uv_poll_start(&w->poll, UV_READABLE, on_device);
}

/* Before anything fails for it: what is registered first may still fit. */
static void look_at_memlock(void)
{
	uint64_t limit;

	if (rdma_memlock_limited(&limit)) {
		log_warn("the limit of locked memory is %" PRIu64
			 " KiB: RDMA devices take no more, and "
			 "what is beyond goes through copies or not by RDMA; LimitMEMLOCK=infinity "
			 "in the unit raises it",
			 limit / 1024);
	}
}

static int start_engine(struct rails *rails)
{
	struct engine_rdma_options o = {
		.list = rails->list,
		.verbs = rails->options.verbs,
		.only = rails->options.mode == RAILS_RDMA,
		.bounds = rails->options.bounds,
	};
	int r;

	if (rails->started) {
		return 0;
	}
	look_at_memlock();
	r = engine_rdma_start(rails->jobs->engine, &o);
	rails->started = r == 0;
	return err_trace(r);
}

static bool has_usable_port(const struct rdma_device *d)
{
	for (uint32_t i = 0; i < d->nports; i++) {
		if (d->ports[i].usable) {
			return true;
		}
	}
	return false;
}

/* The configuration leaves all of it out. */
static bool is_denied(const struct rdma_device *d)
{
	bool denied = d->nports > 0;

	for (uint32_t i = 0; i < d->nports; i++) {
		denied = denied && d->ports[i].denied;
	}
	return denied;
}

/* Hands over what can be used and is not yet, and takes back what may not be used any more. */
static void adopt(struct rails *rails)
{
	for (uint32_t i = 0; i < rails->list->count; i++) {
		struct rdma_device *d = rails->list->devices[i];
		struct rails_watch *w = &rails->watches[i];

		w->rails = rails;
		if (d->gone) {
			take_back(w);
			continue;
		}
		watch_start(w, d);
		if (w->ready && is_denied(d)) {
			take_denied(w);
			continue;
		}
		if (w->ready || w->adding || w->removing || w->refused || !has_usable_port(d)) {
			continue;
		}
		if (start_engine(rails) < 0) {
			w->refused = true;
			snprintf(d->reason, sizeof(d->reason), "the daemon has no memory for it");
			continue;
		}
		w->adding = true;
		w->work.device = d;
		engine_device_add(rails->jobs->engine, &w->work, on_added, w);
	}
}

bool rails_adding(const struct rails *rails)
{
	for (uint32_t i = 0; rails->list && i < rails->list->count; i++) {
		if (rails->watches[i].adding) {
			return true;
		}
	}
	return false;
}

bool rails_device_ready(const struct rails *rails, const struct rdma_device *d)
{
	return rails->watches[d->index].ready && !d->gone;
}

/* ---- looking ------------------------------------------------------------------------------ */

static void look(struct rails *rails)
{
	if (rails->closed || rails->jobs->stopped) {
		return;
	}
	if (rdma_refresh(rails->list, &rails->options.devices) < 0) {
		log_warn("RDMA devices cannot be looked at: no memory");
		return;
	}
	adopt(rails);
	rails_links_changed(rails);
}

static void on_soon(uv_timer_t *timer)
{
	look(container_of(timer, struct rails, soon));
}

/**
 * rails_refresh() - look for devices, ports and GIDs again, after a change of the configuration
 * @rails: borrowed; NULL allowed
 *
 * What the engine could not use is tried again, too: the cause may be mended.
 */
void rails_refresh(struct rails *rails)
{
	if (!rails || !rails->list) {
		return;
	}
	for (uint32_t i = 0; i < rails->list->count; i++) {
		struct rails_watch *w = &rails->watches[i];

		if (w->refused && !rails->list->devices[i]->gone) {
			w->refused = false;
			rails->list->devices[i]->reason[0] = '\0';
		}
	}
	look(rails);
}

/* Anything about InfiniBand or RoCE devices: look. */
static void on_uevent(uv_poll_t *poll, int status, int events)
{
	struct rails *rails = container_of(poll, struct rails, uevent_poll);
	static const char what[] = "SUBSYSTEM=infiniband";
	char buf[UEVENT_MAX];
	ssize_t n;

	for (int i = 0; i < EVENTS_MAX; i++) {
		n = recv(rails->uevents, buf, sizeof(buf), MSG_DONTWAIT);
		if (n < 0 && errno == ENOBUFS) {
			look_soon(rails, RAILS_SOON_MS); /* some were lost */
			continue;
		}
		if (n <= 0) {
			return;
		}
		if (memmem(buf, (size_t)n, what, sizeof(what) - 1)) {
			look_soon(rails, RAILS_SOON_MS);
		}
	}
}

/* Without it devices that come later are found when something else makes us look. */
static void watch_uevents(struct rails *rails)
{
	struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = 1};
	cleanup_close int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
				      NETLINK_KOBJECT_UEVENT);

	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    uv_poll_init(rails->jobs->loop, &rails->uevent_poll, fd) < 0) {
		log_debug("RDMA devices that are plugged in will not be noticed: %s",
			  strerror(errno));
		return;
	}
	rails->uevents = take_fd(&fd);
	uv_poll_start(&rails->uevent_poll, UV_READABLE, on_uevent);
}

void rails_no_port(const struct rails *rails, char *buf, size_t size)
{
	const struct rdma *list = rails->list;
	size_t n = 0;

	if (!list) {
		snprintf(buf, size, "transport = tcp");
		return;
	}
	if (list->count == 0) {
		snprintf(buf, size, "%s", list->reason[0] ? list->reason : "no RDMA device");
		return;
	}
	buf[0] = '\0';
	for (uint32_t i = 0; i < list->count && n < size; i++) {
		const struct rdma_device *d = list->devices[i];
		const char *why = d->reason[0]	  ? d->reason
				  : d->nports > 0 ? d->ports[0].reason
						  : "it has no port";

		n += (size_t)snprintf(buf + n, size - n, "%s%s: %s", n ? "; " : "", d->name,
				      why[0] ? why : "it is being made ready");
	}
}

/* ---- life --------------------------------------------------------------------------------- */

/**
 * rails_new() - look for RDMA devices and use them
 * @options: borrowed; what it points to, for the life of the rails
 * @jobs:    borrowed; has loop and engine
 * @ret:     new object, set on success only
 *
 * Return: 0, also without any device; negative errno.
 */
int rails_new(const struct rails_options *options, struct jobs *jobs, struct rails **ret)
{
	const struct verbs_api *api = options->api ? options->api : &verbs_api_system;
	struct rails *rails = calloc(1, sizeof(*rails));
	int r;

	if (!rails) {
		return err_origin(-ENOMEM);
	}
	rails->options = *options;
	rails->options.wait_ms = options->wait_ms ? options->wait_ms : RAILS_WAIT_MS;
	rails->jobs = jobs;
	rails->uevents = -1;
	list_init(&rails->links);
	if (options->mode != RAILS_TCP) {
		r = rdma_new(api, &rails->options.devices, &rails->list);
		if (r < 0) {
			free(rails);
			return err_trace(r);
		}
		uv_timer_init(jobs->loop, &rails->soon);
		rails->handles = true;
		if (!options->api) {
			watch_uevents(rails);
		}
		adopt(rails);
	}
	*ret = rails;
	return 0;
}

static void on_closed(uv_handle_t *handle)
{
	struct rails *rails = handle->data;

	if (--rails->closing == 0) {
		rails->closed(rails->closed_arg);
	}
}

void rails_close(struct rails *rails, void (*closed)(void *arg), void *arg)
{
	if (!rails || !rails->handles) {
		closed(arg);
		return;
	}
	rails->closed = closed;
	rails->closed_arg = arg;
	for (uint32_t i = 0; i < rails->list->count; i++) {
		watch_stop(&rails->watches[i]);
	}
	rails->closing = 1 + (rails->uevents >= 0);
	rails->soon.data = rails;
	uv_close((uv_handle_t *)&rails->soon, on_closed);
	if (rails->uevents >= 0) {
		rails->uevent_poll.data = rails;
		uv_close((uv_handle_t *)&rails->uevent_poll, on_closed);
	}
}

/**
 * rails_free() - close the devices
 * @rails: consumed; NULL allowed; the engine is freed
 *
 * Return: NULL
 */
struct rails *rails_free(struct rails *rails)
{
	if (rails) {
		assert(list_empty(&rails->links));
		base_close(rails->uevents);
		rdma_free(rails->list);
		free(rails);
	}
	return NULL;
}

const struct rdma *rails_devices(const struct rails *rails)
{
	return rails ? rails->list : NULL;
}

enum rails_mode rails_get_mode(const struct rails *rails)
{
	return rails ? rails->options.mode : RAILS_TCP;
}

bool rails_tcp_allowed(const struct rails *rails)
{
	return !rails || rails->options.mode != RAILS_RDMA;
}
