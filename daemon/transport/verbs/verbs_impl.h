/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Verbs backend, inside view
 *
 * Work requests are named by (queue pair, serial). A completed send completes all before it, for a
 * reliable connection works in order; a receive completes for itself, and one that others overtake
 * for long is a lost completion. Names of queue pairs are not used again soon, so completions that
 * come late or twice match nothing.
 *
 * Re-entrancy: every callback may call verbs_send() and verbs_peer_free(). A peer is freed only
 * when no function of the backend is on the stack (`depth`), and whoever called out looks at
 * peer->state before he goes on. Failures are noted (peer_fail(), rail_fail()) and told by the next
 * verbs_poll().
 *
 * Thread: the progress thread that owns the context      Owns: see verbs.h      Locks: none
 */
#ifndef ROCECOMM_TRANSPORT_VERBS_IMPL_H
#define ROCECOMM_TRANSPORT_VERBS_IMPL_H

#include <assert.h>

#include "transport/verbs/verbs.h"

#define VERBS_POLL 32	      /* completions taken in one call */
#define VERBS_POLL_TURNS 8    /* calls in one verbs_poll() */
#define VERBS_BATCH 16	      /* work requests posted with one doorbell */
#define VERBS_SGE 4	      /* pieces of a write */
#define VERBS_SIGNAL 16	      /* every so many frames one asks for a completion */
#define VERBS_SHARED_MAX 2112 /* bytes of a frame that goes with another in one work request */
#define VERBS_SPARE 16	      /* receives of a bulk queue pair that are posted in one go */
#define VERBS_TX_MAX 256      /* long messages to a peer that have begun */
/*
 * How far sequence numbers run ahead of the oldest frame that no completion has confirmed. They get
 * further ahead of what the receiver has seen: on another rail there may be as many confirmed and
 * unseen ones as it has posted receives (64), times the frames that share one (about a hundred).
 */
#define VERBS_AHEAD 2048
#define VERBS_WINDOW 16384   /* and so far at the receiver, a power of two */
#define VERBS_RESERVE 2	     /* credits of a rail that only CREDIT frames use up */
#define VERBS_FRAMES_KEPT 64 /* frames that only control frames use up */
#define VERBS_IOV_DIRECT 64  /* a message of more pieces goes through landing zones */
#define VERBS_PIECE_MIN 4096 /* and so does one whose pieces are shorter on average */
#define VERBS_QP_TABLE 16384 /* queue pairs of a context */
#define VERBS_TICK_MS 50     /* how often time-outs are looked at */

enum verbs_wr_kind { VERBS_WR_SEND = 0, VERBS_WR_RECV = 1 };

enum verbs_entry_kind { VERBS_ENTRY_FRAME, VERBS_ENTRY_WRITE, VERBS_ENTRY_PROBE };

struct verbs_entry {
	enum verbs_entry_kind kind;
	void *object;
};

/* A frame to send; it stays until the send is known to have worked. */
struct verbs_frame {
	struct list link; /* verbs.free_frames, peer.ready; none: on a queue pair */
	uint8_t *data;	  /* header and body */
	uint32_t size;
	bool sequenced;
};

struct verbs_cq {
	struct ibv_cq *cq;
	struct verbs_dev *dev;
	uint32_t size, reserved; /* entries */
	bool armed;		 /* one event is to come, or is on the channel */
	bool found;		 /* something completed since then */
	uint32_t nstash;	 /* taken while arming */
	struct ibv_wc stash[VERBS_POLL];
	struct verbs_cq *next;
};

/* A device, as this context uses it. */
struct verbs_dev {
	struct rdma_device *device;
	const struct verbs_api *api;
	struct ibv_comp_channel *channel;
	struct verbs_cq *cqs;
	uint32_t qps; /* that we have there */
	bool lost;
};

struct verbs_rq_entry {
	uint16_t buffer;
	bool done;
};

struct verbs_qp {
	struct verbs_rail *rail;
	struct ibv_qp *qp;
	struct verbs_cq *cq;
	uint32_t index; /* in the rail */
	uint32_t handle;
	uint32_t inline_max;
	uint32_t reserved; /* entries of the completion queue */
	struct list flush; /* verbs.flush: has work requests to post */

	/* send queue: serials from head to tail are not complete */
	uint32_t sq_size, sq_head, sq_tail;
	uint32_t sq_asked; /* behind the last one that asked for a completion */
	uint64_t sq_since; /* when something last completed, or the queue was empty */
	struct verbs_entry *sq;
	uint32_t nwrs;
	struct ibv_send_wr wrs[VERBS_BATCH];
	struct ibv_sge sges[VERBS_BATCH][VERBS_SGE];

	/* receive queue: serials from oldest to posted are posted */
	uint32_t rq_size, rq_oldest, rq_posted;
	uint32_t nbuffers;
	uint32_t nfree; /* to post again */
	uint16_t *free; /* their buffers */
	struct verbs_rq_entry *rq;
	uint32_t rq_late; /* completions that came after a gap which is still there */
	uint64_t gap_since;

	uint64_t posted;		       /* bytes of writes */
	uint64_t writes_acked, writes_arrived; /* of this epoch */
	uint64_t writes_told;		       /* that the peer had acknowledged; see CHECK */
	uint64_t told_since;
};

struct verbs_rail {
	struct verbs_peer *peer;
	struct verbs_dev *dev;
	uint32_t index;
	enum verbs_rail_state state;
	bool tell;	  /* rail_event() is due */
	bool down_due;	  /* the peer is not told yet that we left it */
	bool drained_due; /* nor that our end is drained */
	bool local_drained, remote_drained;
	bool offered;	 /* `offer` waits until everything of old is settled */
	bool accept_due; /* OPENED is to be sent */
	uint32_t epoch;
	uint8_t port;
	union ibv_gid gid;
	uint32_t gid_index;
	uint32_t mtu;
	struct verbs_blob local, remote, offer;

	uint32_t nqps;
	struct verbs_qp *qps[VERBS_QPS_MAX];

	uint8_t *rx; /* receive buffers */
	size_t rx_size;
	struct ibv_mr *rx_mr;
	uint32_t credits; /* frames that we may send */
	uint32_t owed;	  /* credits that we owe */

	/* Sends that the device says were acknowledged, what arrived; of this epoch. */
	uint64_t acked, arrived, remote_arrived;
	bool probe_acked;
	uint32_t probes; /* writes of the trial that are not acknowledged */
	uint64_t deadline;
	uint64_t up_since, reopen_at;
	uint32_t backoff_ms;

	struct list unsure; /* fragments that were under way when it failed */
	struct list asked;  /* those that the peer was asked about */

	bool moving; /* the next life is on `next` */
	struct verbs_rail_params next;

	uint64_t inflight; /* bytes in writes */
	uint64_t bytes_sent, bytes_received, work_requests, completions;
	uint32_t failures;
	double rate; /* bytes a nanosecond; 0: unknown */
	uint64_t rate_bytes, rate_since;
	int error;
	char reason[VERBS_REASON];
};

/* A fragment that the peer granted us to write. */
struct verbs_fragment {
	struct list link; /* peer.free_fragments, tx.unposted, rail.unsure, rail.asked */
	struct verbs_tx *tx;
	struct verbs_grant grant;
	int32_t chunk; /* staging buffer; -1: none */
};

/* A long message that is being sent. */
struct verbs_tx {
	struct list link; /* peer.free_tx or peer.active (has fragments to post) */
	struct transport_send *send;
	uint32_t handle;
	uint64_t granted, acked;
	struct list unposted;
	bool large;	/* its memory can be written from as it is: grants may be of any size */
	uint32_t piece; /* where the last fragment began */
	uint64_t piece_at;
};

/* One that is arriving. */
struct verbs_rx {
	struct list link; /* peer.free_rx or peer.wanting (more can be granted) or none */
	struct transport_recv *recv;
	uint32_t sender; /* its handle of the message */
	bool used, direct;
	uint32_t grant_size; /* of direct grants, unless packets are lost */
	uint32_t grant_max;  /* the same when there is enough else for all queue pairs */
	uint64_t length, granted, received;
	uint32_t piece; /* direct: the next to grant */
	uint64_t piece_offset;
};

struct verbs_ticket {
	struct verbs_rx *rx; /* NULL: free */
	uint32_t ticket;     /* the present or next value */
	uint32_t size;
	uint64_t offset;
	int32_t chunk;
	uint16_t next; /* of the free ones: index + 1 */
	bool outside;  /* another transport is writing it: nothing else may end it */
};

enum verbs_peer_state {
	VERBS_PEER_OPEN,
	VERBS_PEER_FAILED, /* to be told by verbs_poll() */
	VERBS_PEER_DEAD,
};

struct verbs_peer {
	struct verbs *v;
	void *user;
	char name[64];
	bool initiator;
	struct list link;   /* verbs.peers or verbs.garbage */
	struct list dirty;  /* verbs.dirty: see verbs_peer_work() */
	struct list failed; /* verbs.failed */
	enum verbs_peer_state state;
	bool freed;
	int error;
	char reason[VERBS_REASON];
	struct verbs_rail *rails[VERBS_RAILS_MAX];
	uint32_t nrails;
	uint32_t up; /* bits of rails that are UP */
	/* The smaller of what both ends can; 0: not connected yet. */
	uint32_t body_max; /* of a frame */
	uint32_t fragment;
	uint32_t grant_size; /* of the fragments we grant: less after losses */
	uint64_t grant_since;
	bool was_up;
	uint64_t lost_since; /* no rail is up since then; 0: one is */
	/* Fragments that moved, in all and until the last time that all rails were lost. */
	uint64_t moved, moved_before;
	uint32_t fruitless; /* how often in turn all were lost and nothing had moved */

	uint32_t tx_seq; /* next */
	uint32_t rx_low; /* all before arrived */
	uint64_t rx_bits[VERBS_WINDOW / 64];
	struct list ready;   /* frames that wait for a rail */
	struct list eager;   /* short messages that wait */
	struct list waiting; /* long messages whose RTS waits */

	uint32_t ntx;
	struct list free_tx, active;
	struct verbs_tx *tx; /* [VERBS_TX_MAX] */
	uint64_t backlog;    /* bytes granted and not posted */
	uint32_t nfragments;
	struct list free_fragments;
	struct verbs_fragment *fragments; /* [nfragments]: the peer's tickets */

	uint32_t nrx;
	struct list free_rx, wanting;
	struct verbs_rx *rx;  /* [VERBS_TX_MAX] */
	uint32_t outstanding; /* tickets */
	uint32_t landing;     /* chunks */
	uint16_t free_ticket;
	struct verbs_ticket *tickets; /* [options.tickets] */
	uint64_t progress;	      /* when something last moved */
	uint64_t checked;	      /* when CHECK was last sent */
};

struct verbs_qp_slot {
	struct verbs_qp *qp;
	uint16_t generation;
};

struct verbs {
	struct verbs_options options;
	struct verbs_handler handler;
	void *arg;
	const struct clock_source *clock;
	uint64_t now;
	int epoll, timer;
	bool timer_set;
	uint64_t timer_at, tick_at;
	uint32_t depth;
	bool polling;
	uint64_t seed;
	struct list peers, dirty, failed, garbage, flush;
	uint32_t npeers;

	struct verbs_dev devs[RDMA_DEVICES_MAX]; /* by device index; device NULL: not ours */
	uint32_t ndevs;				 /* behind the last one */

	struct verbs_qp_slot *qps; /* [VERBS_QP_TABLE] */
	uint32_t next_qp;

	uint32_t frame_size; /* header and largest body */
	uint32_t frame_stride;
	struct rdma_mem *buffers; /* frames, then chunks */
	size_t chunks_at;
	uint32_t nframes_free;
	struct list free_frames;
	struct verbs_frame *frames;
	uint32_t nchunks_free, landing;
	uint32_t *free_chunks;

	const struct rdma_mem **mems; /* by address */
	uint32_t nmems, mems_room;
	struct verbs_stats stats;
};

/* May another transport carry on when no rail is up? */
static inline bool verbs_has_outside(const struct verbs *v)
{
	return v->handler.pass_on != NULL;
}

/* ---- context.c --------------------------------------------------------------------------- */
void verbs_enter(struct verbs *v);
void verbs_leave(struct verbs *v);
/* The same, but what was prepared is left to verbs_flush() or verbs_poll(). */
void verbs_leave_later(struct verbs *v);

/* ---- buffers.c --------------------------------------------------------------------------- */
int verbs_buffers_init(struct verbs *v);
void verbs_buffers_deinit(struct verbs *v);
int32_t verbs_chunk_get(struct verbs *v, bool landing);
void verbs_chunk_put(struct verbs *v, int32_t chunk, bool landing);
uint8_t *verbs_chunk_data(const struct verbs *v, int32_t chunk);
/* The registered region that holds all of it; NULL: none. */
const struct rdma_mem *verbs_mem_find(const struct verbs *v, const void *base, size_t size);
/* Is it registered with every device that the peer's rails use? */
bool verbs_mem_usable(const struct verbs_peer *peer, const void *base, size_t size);

/* ---- device.c ---------------------------------------------------------------------------- */
void verbs_dev_close(struct verbs_dev *dev);
/* All completions that are there; nothing more comes. */
void verbs_dev_finish(struct verbs *v, struct verbs_dev *dev);
/* Room for @entries more completions. Return: 0, negative errno and why. */
int verbs_cq_reserve(struct verbs_dev *dev, uint32_t entries, struct verbs_cq **ret, char *why,
		     size_t size);

/* ---- qp.c -------------------------------------------------------------------------------- */
int verbs_qp_new(struct verbs_rail *rail, uint32_t index, struct verbs_qp **ret, char *why,
		 size_t size);
/* Destroys it on the device: no work of it happens afterwards. Its entries stay. */
void verbs_qp_close(struct verbs_qp *qp);
struct verbs_qp *verbs_qp_free(struct verbs_qp *qp);
int verbs_qp_connect(struct verbs_qp *qp, uint32_t mtu, char *why, size_t size);
void verbs_qp_error(struct verbs_qp *qp);
enum ibv_qp_state verbs_qp_state(const struct verbs_qp *qp);
uint32_t verbs_qp_flow_label(const struct verbs_rail *rail, uint32_t index);
uint32_t verbs_qp_room(const struct verbs_qp *qp);
/* A work request to fill, posted at the end of the present call; there must be room. */
struct ibv_send_wr *verbs_qp_push(struct verbs_qp *qp, enum verbs_entry_kind kind, void *object,
				  bool signal);
void verbs_qp_flush(struct verbs_qp *qp);
/* Posts receives that were used up. */
void verbs_qp_refill(struct verbs_qp *qp);
void verbs_qp_complete(struct verbs *v, const struct ibv_wc *wc);

/* ---- frame.c ----------------------------------------------------------------------------- */
/* NULL: none is free now. @control: may use the last ones. */
struct verbs_frame *verbs_frame_get(struct verbs *v, bool control);
void verbs_frame_put(struct verbs *v, struct verbs_frame *f);
struct verbs_frame_header *verbs_frame_start(struct verbs_frame *f, enum verbs_frame_type type,
					     uint32_t length);
static inline uint8_t *verbs_frame_body(struct verbs_frame *f)
{
	return f->data + sizeof(struct verbs_frame_header);
}
/* Where the frame behind the one at @at begins, in a buffer of several. */
uint32_t verbs_frame_next(const uint8_t *data, uint32_t at);
/* A rail that takes a sequenced frame now. */
struct verbs_rail *verbs_frame_rail(struct verbs_peer *peer);
/* Consumes the frame; it is sent as soon as a rail takes it. */
void verbs_frame_send(struct verbs_peer *peer, struct verbs_frame *f);
/* On this rail; there must be a credit. */
void verbs_frame_post(struct verbs_rail *rail, struct verbs_frame *f);
/* Sends what waits for a rail. */
void verbs_frames_pump(struct verbs_peer *peer);
/* Is there a way for control frames? */
static inline bool verbs_can_talk(const struct verbs_peer *peer)
{
	return peer->up || peer->v->handler.control;
}
void verbs_frame_arrived(struct verbs_rail *rail, uint8_t *data, uint32_t size);
void verbs_credits_return(struct verbs_rail *rail);

/* ---- peer.c ------------------------------------------------------------------------------ */
void verbs_peer_fail(struct verbs_peer *peer, int error, const char *reason);
/* For a peer that broke the protocol. */
void verbs_peer_violation(struct verbs_peer *peer, const char *what);
void verbs_peer_dirty(struct verbs_peer *peer);
void verbs_peer_work(struct verbs_peer *peer);
void verbs_tell_failed(struct verbs *v);
void verbs_peer_destroy(struct verbs_peer *peer);
/* Agrees on sizes with what the blob says, and makes the tables for it. */
int verbs_peer_prepare(struct verbs_peer *peer, const struct verbs_blob *b);

/* ---- rail.c ------------------------------------------------------------------------------ */
void verbs_rail_fail(struct verbs_rail *rail, int error, const char *fmt, ...) attr_printf(3, 4);
void verbs_rail_wc_failed(struct verbs_rail *rail, struct verbs_qp *qp, const struct ibv_wc *wc);
void verbs_rail_probe_done(struct verbs_rail *rail);
/* Anything that is due: control frames, the end of draining, reopening. */
void verbs_rail_work(struct verbs_rail *rail);
void verbs_rail_tick(struct verbs_rail *rail);
/* Packets were lost: smaller fragments lose less. */
void verbs_peer_shrink(struct verbs_peer *peer);
struct verbs_rail *verbs_rail_free(struct verbs_rail *rail);
void verbs_rail_describe(const struct verbs_rail *rail, char *buf, size_t size);
/* Control frames. */
void verbs_rail_down(struct verbs_peer *peer, const struct verbs_frame_header *h,
		     const uint8_t *body);
void verbs_rail_drained(struct verbs_peer *peer, const struct verbs_frame_header *h,
			const uint8_t *body);
void verbs_rail_offered(struct verbs_peer *peer, const struct verbs_blob *blob);
void verbs_rail_accepted(struct verbs_peer *peer, const struct verbs_blob *blob);

/* ---- setup.c ----------------------------------------------------------------------------- */
/* Makes queue pairs and fills rail->local. */
int verbs_rail_prepare(struct verbs_rail *rail, char *why, size_t size);
/* Connects them to rail->remote and starts the trial. */
int verbs_rail_start(struct verbs_rail *rail, char *why, size_t size);
/* It was left before the other end's blob came. Return: negative errno and why. */
int verbs_rail_left(struct verbs_rail *rail, char *why, size_t size);
int verbs_rail_check_blob(const struct verbs_rail *rail, const struct verbs_blob *b, char *why,
			  size_t size);
/* Gives the registration of its receive buffers back; no queue pair has them. */
void verbs_rail_drop_rx(struct verbs_rail *rail);
void verbs_rail_destroy_qps(struct verbs_rail *rail);

/* ---- resume.c ---------------------------------------------------------------------------- */
/* Asks about the fragments that were under way. */
void verbs_resume_ask(struct verbs_rail *rail);
/* The peer's memory has other keys on this rail: what it granted before cannot go there. */
void verbs_forget_keys(struct verbs_peer *peer, uint32_t rail);
/* The same for grants of ours that have not left yet. */
void verbs_withdraw_keys(struct verbs_peer *peer, uint32_t rail);
void verbs_resume_asked(struct verbs_peer *peer, const struct verbs_frame_header *h,
			const uint8_t *body);
void verbs_resume_answered(struct verbs_peer *peer, const struct verbs_frame_header *h,
			   const uint8_t *body);
/* The entries of a queue pair that is gone: frames are sent again, fragments are unsure. */
void verbs_resume_entries(struct verbs_qp *qp);

/* ---- send.c ------------------------------------------------------------------------------ */
void verbs_send_pump(struct verbs_peer *peer);
void verbs_send_granted(struct verbs_peer *peer, const struct verbs_frame_header *h,
			const uint8_t *body);
void verbs_send_cancel(struct verbs_peer *peer, int status);
/* Copies bytes [offset, offset + size) of the pieces. */
void verbs_iov_gather(uint8_t *to, const struct iovec *iov, uint32_t niov, uint64_t offset,
		      uint64_t size);
/* Where byte @offset is. */
uint8_t *verbs_iov_at(const struct iovec *iov, uint32_t niov, uint64_t offset);
void verbs_iov_scatter(const struct iovec *iov, uint32_t niov, uint64_t offset, const uint8_t *from,
		       uint64_t size);

/* ---- write.c ----------------------------------------------------------------------------- */
void verbs_write_pump(struct verbs_peer *peer);
void verbs_write_done(struct verbs_rail *rail, struct verbs_fragment *f);
/* The fragment has arrived; may call out. */
void verbs_fragment_acked(struct verbs_peer *peer, struct verbs_fragment *f);
void verbs_fragment_unstage(struct verbs_peer *peer, struct verbs_fragment *f);

/* ---- recv.c ------------------------------------------------------------------------------ */
void verbs_recv_eager(struct verbs_peer *peer, const struct verbs_frame_header *h,
		      const uint8_t *body);
void verbs_recv_rts(struct verbs_peer *peer, const struct verbs_frame_header *h,
		    const uint8_t *body);
/* @rdma: a rail brought it. */
void verbs_recv_write(struct verbs_peer *peer, uint32_t ticket, bool rdma);
void verbs_recv_pump(struct verbs_peer *peer);
void verbs_recv_cancel(struct verbs_peer *peer);

/* ---- watch.c ----------------------------------------------------------------------------- */
void verbs_watch(struct verbs *v);
/* Is there anything whose time-out must be looked at? */
bool verbs_watch_needed(const struct verbs *v);
void verbs_check_arrived(struct verbs_rail *rail, const struct verbs_frame_header *h,
			 const uint8_t *body);

#endif
