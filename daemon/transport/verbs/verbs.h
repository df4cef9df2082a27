/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Verbs backend: messages to peer hosts over RoCE v2 reliable connected queue pairs
 *
 * The contract of transport.h (messages without order, the receiver decides at the first sign of a
 * message where it goes, done() when the memory may be reused), over one or more rails a peer. A
 * rail is a pair of ports. Short messages go with SEND into posted buffers; long ones are written
 * straight from registered memory into the receiver's registered memory, or into a landing zone
 * when they are to be reduced. Memory that is not registered goes through buffers of the context,
 * and counts as copied.
 *
 * A rail that fails is drained on both ends before anything that was on it is sent again, so that
 * no late write meets memory that was given back; tickets make sure that no fragment counts twice.
 * It is tried again, with new queue pairs and a probe. Without any rail the peer is down, unless
 * the two ends can talk another way (handler.control): then they have some seconds to open one
 * again.
 *
 * What a peer can do: write anywhere in a registered region whose key it was told (see
 * topo/rdma_mem.h), send frames. Every number in a frame is checked; a frame that breaks the rules
 * takes the peer down.
 *
 * Another transport to the same peer may carry on when no rail is left (handler.pass_on and write):
 * what has not begun goes there as a whole, what has begun is finished there, frame by frame and
 * fragment by fragment, under the same numbers and tickets, so nothing is lost and nothing counts
 * twice. The peer then never fails for want of a rail.
 *
 * verbs_send() prepares; verbs_flush(), verbs_poll() and verbs_arm() post, so that what is sent in
 * one turn takes one doorbell and, when it is short, one work request.
 *
 * Setting up a rail costs the thread some milliseconds (queue pairs are made and moved). It happens
 * when a peer host is new, never for a job or an operation.
 *
 * Thread: the progress thread that owns the context, for everything      Owns: its peers, rails,
 * queue pairs, completion queues and buffers      Locks: none
 */
#ifndef ROCECOMM_TRANSPORT_VERBS_H
#define ROCECOMM_TRANSPORT_VERBS_H

#include "topo/rdma.h"
#include "topo/rdma_mem.h"
#include "transport/transport.h"
#include "transport/verbs/verbs_wire.h"
#include "util/clock.h"

#define VERBS_REASON 560
/* Bytes that handler.control() may be given, with the default options; see verbs_control_max(). */
#define VERBS_CONTROL_MAX 8288

struct verbs;	       /* one per progress thread */
struct verbs_peer;     /* one per peer host */
struct verbs_fragment; /* of a message, granted by the peer */

enum verbs_rail_state {
	VERBS_RAIL_NONE,
	VERBS_RAIL_INIT,     /* opened, waits for verbs_rail_connect() */
	VERBS_RAIL_PROBING,  /* connected, the trial is on its way */
	VERBS_RAIL_UP,	     /* in use */
	VERBS_RAIL_DRAINING, /* failed; what was on it is being settled */
	VERBS_RAIL_DOWN,     /* out of use */
	VERBS_RAIL_OPENING,  /* new queue pairs were offered to the peer */
	VERBS_RAIL_STATE_COUNT_
};

/* As in struct transport_handler. */
struct verbs_handler {
	int (*recv_begin)(void *arg, struct verbs_peer *peer, const struct wire_header *header,
			  struct transport_recv **ret);
	void (*fragment)(void *arg, struct transport_recv *recv, const void *data, uint64_t offset,
			 uint64_t size);
	void (*recv_done)(void *arg, struct transport_recv *recv);
	/*
	 * Before its sends complete and its memory is let go: what brings fragments of it another
	 * way (verbs_outside_begin()) must have stopped when this returns.
	 */
	void (*peer_down)(void *arg, struct verbs_peer *peer, int error, const char *reason);
	/* A rail is UP or DOWN now; @text says why (borrowed). NULL allowed. */
	void (*rail_event)(void *arg, struct verbs_peer *peer, uint32_t rail,
			   enum verbs_rail_state state, const char *text);
	/*
	 * Carries a few bytes (up to verbs_control_max(), copied) to the peer's verbs_control()
	 * another way, while no rail is up: in the daemon, a data connection. Must not call back.
	 * Return: false: not now, it is tried again. NULL: there is no other way, and the peer is
	 * down when its last rail is.
	 */
	bool (*control)(void *arg, struct verbs_peer *peer, const void *data, size_t size);
	/*
	 * Both or none, and with control: another transport takes over while no rail is up.
	 * pass_on() gets a message that has not begun: its done() is the other one's business, and
	 * may be called from inside. write() carries a fragment to the peer's verbs_outside_begin()
	 * and calls verbs_outside_sent() when @data may be reused, which may be from inside.
	 * Return: false: not now, it is tried again.
	 */
	void (*pass_on)(void *arg, struct verbs_peer *peer, struct transport_send *send);
	bool (*write)(void *arg, struct verbs_peer *peer, uint32_t ticket, void *data,
		      uint32_t size, struct verbs_fragment *fragment);
};

/* 0 means the default everywhere. */
struct verbs_options {
	uint32_t fragment;	/* bytes of a write, a multiple of 64; 256 KiB */
	uint32_t direct;	/* of one between registered memory, up to 8 MiB; 1 MiB */
	uint32_t eager;		/* payload of the longest message that goes in a frame; 8 KiB */
	uint32_t frames;	/* buffers for frames to send; 512 */
	uint32_t chunks;	/* buffers of a fragment each, for landing and staging; 64 */
	uint32_t bulk_qps;	/* of a rail; 2 */
	uint32_t bulk_depth;	/* writes on a bulk queue pair at a time; 4 */
	uint32_t credits;	/* buffers posted on a rail for frames; 64 */
	uint32_t tickets;	/* fragments that a peer may have under way to us; 128 */
	uint32_t inline_max;	/* bytes sent inline if the device can; 220 */
	uint32_t mtu;		/* largest to agree on, bytes; 4096 */
	uint8_t traffic_class;	/* DSCP << 2; 0 */
	uint8_t service_level;	/* 0 */
	uint8_t hop_limit;	/* 64 */
	uint8_t timeout;	/* 4.096 us << n; 16: 268 ms */
	uint8_t retry;		/* at most 6: 7 means for ever to some devices; 6 */
	uint8_t rnr_retry;	/* at most 6: 7 means for ever; 6 */
	uint8_t rnr_timer;	/* 12: 0.64 ms */
	uint32_t wr_timeout_ms; /* a work request without completion; 10000 */
	uint32_t gap_ms;	/* a completion that others have overtaken; 1000 */
	uint32_t drain_ms;	/* until a failed queue pair is destroyed anyway; 500 */
	uint32_t probe_ms;	/* until a trial has failed; 10000 */
	uint32_t reopen_ms;	/* until a failed rail is tried again; doubles; 500 */
	uint32_t reopen_max_ms; /* 30000 */
	uint32_t recover_ms;	/* without any rail until the peer is down (see control); 10000 */
};

struct verbs_stats {
	uint64_t bytes_sent, bytes_received; /* payload and headers */
	uint64_t bytes_copied;	 /* payload received in frames, staged or landed and copied out */
	uint64_t bytes_gathered; /* payload copied into frames */
	uint64_t frames_sent, frames_received;
	uint64_t writes_sent, writes_received;
	uint64_t send_wrs, send_doorbells, recv_wrs, recv_doorbells;
	uint64_t completions, polls, events, notifies;
	uint64_t resent_frames, resent_writes;	 /* after a rail failed */
	uint64_t outside_frames, outside_writes; /* that went by the other transport */
	uint64_t strays;			 /* completions and frames that came twice */
	uint64_t rails_failed;
};

struct verbs_rail_params {
	struct rdma_device *device; /* borrowed; was given to verbs_device_add() */
	uint8_t port;
	union ibv_gid gid;  /* ours */
	uint32_t gid_index; /* where it was last seen; looked up when it is not there */
};

struct verbs_rail_info {
	enum verbs_rail_state state;
	const char *device;
	uint8_t port;
	union ibv_gid local, remote;
	uint32_t gid_index;
	uint32_t mtu, local_mtu, remote_mtu; /* agreed, and what each end had; 0: not yet */
	uint8_t traffic_class, remote_traffic_class;
	uint32_t nqps;
	uint16_t udp_ports[VERBS_QPS_MAX]; /* source ports, where the device derives them so */
	uint64_t bytes_sent, bytes_received;
	uint64_t work_requests, completions;
	uint64_t bytes_per_second; /* that it delivered lately; 0: unknown */
	uint32_t failures;	   /* how often it was left */
	char reason[VERBS_REASON]; /* of the last failure; "" */
};

/* @clock: borrowed. Return: 0, -EINVAL for options out of range, negative errno. */
int verbs_new(const struct verbs_options *options, const struct verbs_handler *handler, void *arg,
	      const struct clock_source *clock, struct verbs **ret);
/* Closes all peers; queued sends complete with -ECANCELED. */
struct verbs *verbs_free(struct verbs *v);
/* Bytes of its own that it registers with each device, less receive buffers. */
size_t verbs_memory(const struct verbs *v);
/* Another clock, before the first device. @clock: borrowed; it may stand still during a turn. */
void verbs_set_clock(struct verbs *v, const struct clock_source *clock);

/*
 * Gets the context ready for rails on this device: registers its buffers, makes a completion queue.
 * Return: 0 (again: nothing), or negative errno and why, as a sentence.
 */
int verbs_device_add(struct verbs *v, struct rdma_device *d, char *why, size_t size);
/* The device is broken or about to go: its rails fail, and nothing of it is used afterwards. */
void verbs_device_lost(struct verbs *v, struct rdma_device *d, const char *text);
/* What rdma_device_event() said. */
void verbs_device_event(struct verbs *v, struct rdma_device *d, const struct rdma_event *event);

/*
 * Sends from and receives into @mem without copies, from now on. Return: 0, -ENOMEM, -EEXIST when
 * it overlaps another.
 */
int verbs_mem_add(struct verbs *v, const struct rdma_mem *mem);
/* No message that uses it is open; after this it may be deregistered. */
void verbs_mem_remove(struct verbs *v, const struct rdma_mem *mem);

/*
 * @name: of the host, for texts. @initiator: exactly one end of each pair is; it reopens rails.
 */
int verbs_peer_new(struct verbs *v, void *user, const char *name, bool initiator,
		   struct verbs_peer **ret);
void *verbs_peer_user(const struct verbs_peer *peer);
/*
 * Queued sends complete with -ECANCELED; peer_down is not called. Queue pairs are destroyed before
 * this returns: nothing reads or writes messages' memory afterwards. NULL allowed.
 */
struct verbs_peer *verbs_peer_free(struct verbs_peer *peer);

/*
 * First half of a rail: makes queue pairs. @rail: the same number on both ends. Return: 0 with what
 * the other end needs, or negative errno and why.
 */
int verbs_rail_open(struct verbs_peer *peer, uint32_t rail, const struct verbs_rail_params *params,
		    struct verbs_blob *ret, char *why, size_t size);
/*
 * Second half: connects them and starts the trial; rail_event() tells its outcome. Return: 0,
 * -EPROTO when the blob makes no sense, negative errno; and why.
 */
int verbs_rail_connect(struct verbs_peer *peer, uint32_t rail, const struct verbs_blob *remote,
		       char *why, size_t size);
/* The other end does not want the rail that was opened: it is forgotten. */
void verbs_rail_drop(struct verbs_peer *peer, uint32_t rail);
/*
 * From its next life on the rail uses another port or GID of ours; when it is up on the old one it
 * is left. For addresses that changed, and for devices that came again. Return: 0, -EINVAL and why.
 */
int verbs_rail_move(struct verbs_peer *peer, uint32_t rail, const struct verbs_rail_params *params,
		    char *why, size_t size);
void verbs_rail_info(const struct verbs_peer *peer, uint32_t rail, struct verbs_rail_info *ret);
/* Is any rail up? */
bool verbs_peer_ready(const struct verbs_peer *peer);

/* What the peer's handler.control() was given. */
void verbs_control(struct verbs_peer *peer, const void *data, size_t size);
size_t verbs_control_max(const struct verbs *v);
/* Fragments that a peer may have under way to us. */
uint32_t verbs_tickets(const struct verbs *v);
/*
 * What the peer's handler.write() was given arrives. Return: where its @size bytes go, valid until
 * verbs_outside_done() or the end of the peer; NULL: no such ticket is out, or it is begun already.
 */
void *verbs_outside_begin(struct verbs_peer *peer, uint32_t ticket, uint64_t size);
/* All of them are there. */
void verbs_outside_done(struct verbs_peer *peer, uint32_t ticket);
/* @status: 0, or negative errno: the other transport is lost, and the peer will be. */
void verbs_outside_sent(struct verbs_peer *peer, struct verbs_fragment *fragment, int status);

/*
 * Queues a message and prepares what can be sent now: verbs_flush() sends it, or the next
 * verbs_poll(). Never fails: errors come through done.
 */
void verbs_send(struct verbs_peer *peer, struct transport_send *send);
void verbs_flush(struct verbs *v);
/*
 * Nobody waits for the message any more: what is still to come of it is dropped, and recv_done()
 * comes all the same. Return: true when nothing is written to its memory from now on; false when
 * the peer may still write what it was granted there: then the memory stays registered until
 * recv_done(), or until the peer is down or freed.
 */
bool verbs_drop(struct verbs_peer *peer, struct transport_recv *recv);
/* As transport_poll(). Return: how many completions there were. */
int verbs_poll(struct verbs *v);
int verbs_fd(const struct verbs *v);
/*
 * Call it after the last verbs_poll() and verbs_send() before sleeping on verbs_fd(). Return: false
 * when there is work already: poll instead.
 */
bool verbs_arm(struct verbs *v);
void verbs_get_stats(const struct verbs *v, struct verbs_stats *ret);

#endif
