/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Rails, inside: what the files rails*.c share
 *
 *	rails.c		devices: found, watched, handed to the engine, taken back
 *	rails_link.c	one peer: ports told, what came of it, whether it is waited for
 *	rails_pair.c	pairs of ports: proposed, opened, moved to other addresses
 *	rails_paths.c	all of it in words
 *
 * Everything that is asked of the engine is answered before the peer is given back by it, so what
 * hangs on a link may be named in its callbacks for as long as the engine has the peer.
 *
 * Thread: control      Owns: see each struct      Locks: none
 */
#ifndef ROCECOMM_JOB_RAILS_IMPL_H
#define ROCECOMM_JOB_RAILS_IMPL_H

#include "engine/engine_rdma.h"
#include "job/hostlink.h"
#include "job/jobs.h"
#include "job/rails.h"
#include "peer.pb-c.h"
#include "util/list.h"

#define RAILS_GID_SIZE 16
#define RAILS_REMOTE_MAX 64 /* GIDs of a peer that are looked at */
#define RAILS_SOON_MS 100   /* after a change: others may follow at once */
#define RAILS_RETRY_MS 5000 /* until a pair that could not be made is tried again */

/* A device that was handed to the engine, by its index in the list. */
struct rails_watch {
	struct rails *rails;
	uv_poll_t poll;
	bool polling;  /* poll is in the loop */
	bool adding;   /* the engine has not answered */
	bool ready;    /* it may have rails */
	bool removing; /* it is being taken back */
	bool refused;  /* the engine could not use it; device->reason says why */
	struct engine_device work;
};

struct rails {
	struct rails_options options;
	struct jobs *jobs;
	struct rdma *list; /* NULL: transport = tcp */
	bool started;	   /* the engine knows of RDMA */
	struct rails_watch watches[RDMA_DEVICES_MAX];
	struct list links; /* rails_link.link */

	int uevents; /* a netlink socket, that tells of devices; -1: none */
	uv_poll_t uevent_poll;
	uv_timer_t soon; /* looks again */
	bool handles;	 /* both are in the loop */
	unsigned int closing;
	void (*closed)(void *arg);
	void *closed_arg;
};

enum rails_pair_state {
	RAILS_PAIR_FREE,
	RAILS_PAIR_OPENING,    /* the engine makes queue pairs */
	RAILS_PAIR_PROPOSED,   /* the peer was asked */
	RAILS_PAIR_CONNECTING, /* the engine tries it */
	RAILS_PAIR_UP,
	RAILS_PAIR_DOWN, /* was left or never came up; the transport tries it again */
	RAILS_PAIR_DROPPING,
	RAILS_PAIR_FAILED, /* cannot be made now */
};

struct rails_pair {
	struct rails_link *link;
	enum rails_pair_state state;
	uint32_t rail;
	uint32_t device; /* index in the list */
	uint8_t port;
	union ibv_gid local, remote;
	uint32_t failures;
	uint64_t retry_at; /* FAILED: ms */
	char device_name[IBV_SYSFS_NAME_MAX];
	char text[VERBS_REASON]; /* what is to be said of its state */
	bool busy;		 /* the engine has `work` */
	struct engine_rail work;
	bool moving; /* `work` is a move */
	bool told;   /* the log has what its ends have differently */
};

struct rails_remote {
	char device[IBV_SYSFS_NAME_MAX];
	uint8_t port;
	uint32_t mtu, mbps;
};

/* RDMA with one peer. */
struct rails_link {
	struct list link; /* rails.links */
	struct rails *rails;
	struct hostlink *l;
	bool initiator;
	bool started; /* the engine was told that it may have rails */
	bool heard;   /* the peer's ports are known */
	bool planned; /* how many pairs there are is known */
	bool settled; /* no new communicator waits for it any more */
	bool only;    /* the peer does without TCP */
	uint64_t deadline;
	uint32_t nplanned;
	uint32_t noffered; /* GIDs of ours that the peer was told last */
	uint32_t nremote;
	struct rdma_remote remote[RAILS_REMOTE_MAX];
	struct rails_remote info[RAILS_REMOTE_MAX]; /* of the same */
	char reason[VERBS_REASON];		    /* why there are no pairs */
	struct rails_pair pairs[VERBS_RAILS_MAX];
};

/* rails.c */
/* The device may have rails now. */
bool rails_device_ready(const struct rails *rails, const struct rdma_device *d);
/* Is any being made ready? Then there may be more ports in a moment. */
bool rails_adding(const struct rails *rails);
/* Why this host has no port to offer: a part of a sentence. */
void rails_no_port(const struct rails *rails, char *buf, size_t size);

/* rails_link.c */
/* Devices, ports or GIDs are not what they were. */
void rails_links_changed(struct rails *rails);
/* Those who wait for it go on when all of it is decided. */
void rails_link_check(struct rails_link *k);

static inline bool rails_link_is_gone(const struct rails_link *k)
{
	return !k->l->peer || k->rails->jobs->stopped;
}

/* rails_pair.c */
/* The initiator: makes the pairs that can be made and are not there. */
void rails_pairs_propose(struct rails_link *k);
/* Pairs whose address or device is gone go on under another one. */
void rails_pairs_follow(struct rails_link *k);

static inline bool rails_pair_is_open(const struct rails_pair *p)
{
	return p->state != RAILS_PAIR_FREE && p->state != RAILS_PAIR_FAILED;
}

#endif
