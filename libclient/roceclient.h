/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * roceclient: collectives for training processes, carried by the host's rocecommd
 *
 * The only public header. A process connects to the daemon of its host, joins communicators and
 * posts operations on plain pointers; the daemons of all hosts run them. See roceclient(7).
 *
 * Results. Every function that can fail returns an enum roce_status; roce_last_error() gives the
 * sentence that belongs to the calling thread's last failure: what was refused, the value, the
 * limit and the mend. Outputs (ret_*) are written on success only.
 *
 * Threads. A client and everything made from it may be used from several threads; calls on one
 * client are serialised by a lock inside (held for the time of a post, never while waiting). The
 * library installs no signal handler, changes no process attribute, and starts no thread but one: a
 * watchdog, for clients that hand over GPU memory.
 *
 * Order. All ranks post the same collectives in the same order on one communicator. Operations of
 * one communicator that touch overlapping memory take effect in the order of posting; others may
 * overlap in time. Between two communicators only roce_wait orders.
 *
 * Fork. In a forked child every call on the parent's handles fails with ROCE_ERR_FORKED and leaves
 * the parent undisturbed; the child may connect for itself.
 *
 * ABI. Structs begin with `size` = sizeof as the caller knows it; handles are opaque; symbols are
 * versioned.
 */
#ifndef ROCECLIENT_H
#define ROCECLIENT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ROCE_API __attribute__((visibility("default")))

enum roce_status {
	ROCE_OK = 0,
	ROCE_IN_PROGRESS = 1,	  /* not finished yet (roce_test, or a wait that timed out) */
	ROCE_ERR_INVALID = 2,	  /* an argument is wrong */
	ROCE_ERR_UNSUPPORTED = 3, /* a combination that does not exist, such as sum of fp8 */
	ROCE_ERR_MISMATCH = 4,	  /* ranks disagree */
	ROCE_ERR_PEER_DIED = 5,	  /* another rank or its daemon died or left */
	ROCE_ERR_ABORTED = 6,
	ROCE_ERR_TIMEOUT = 7, /* a rank never arrived, or bytes stopped */
	ROCE_ERR_QUOTA = 8,
	ROCE_ERR_NO_MEMORY = 9,
	ROCE_ERR_NO_DAEMON = 10,
	ROCE_ERR_PERMISSION = 11,
	ROCE_ERR_VERSION = 12,
	ROCE_ERR_PROTOCOL = 13,
	ROCE_ERR_FD_MISSING = 14,
	ROCE_ERR_BAD_MEMORY = 15,
	ROCE_ERR_UNREACHABLE = 16,
	ROCE_ERR_FORKED = 17,
	ROCE_ERR_SHUTDOWN = 18,
	ROCE_ERR_EXISTS = 19,
	ROCE_ERR_NOT_FOUND = 20,
	ROCE_ERR_INTERNAL = 21
};

enum roce_dtype {
	ROCE_I8 = 0,
	ROCE_U8 = 1,
	ROCE_I16 = 2,
	ROCE_U16 = 3,
	ROCE_I32 = 4,
	ROCE_U32 = 5,
	ROCE_I64 = 6,
	ROCE_U64 = 7,
	ROCE_F16 = 8,
	ROCE_BF16 = 9,
	ROCE_F32 = 10,
	ROCE_F64 = 11,
	ROCE_F8E4M3 = 12, /* moved, never reduced */
	ROCE_F8E5M2 = 13
};

/*
 * Reductions. f16 and bf16 accumulate in f32 and are rounded at most once a hop (once on a host,
 * once per exchange between hosts). NaN propagates through min and max. avg divides the sum by the
 * number of ranks: a true division for floats, truncation toward zero for integers. Integer sums
 * and products wrap. Bitwise and logical operations take integers only; logical results are 0 or 1.
 */
enum roce_op {
	ROCE_SUM = 0,
	ROCE_PROD = 1,
	ROCE_MIN = 2,
	ROCE_MAX = 3,
	ROCE_AVG = 4,
	/* 5: pre-multiplied sum, made by roce_op_create_premul() */
	ROCE_BAND = 6,
	ROCE_BOR = 7,
	ROCE_BXOR = 8,
	ROCE_LAND = 9,
	ROCE_LOR = 10,
	ROCE_LXOR = 11,
	ROCE_OP_USER = 0x10000 /* first value that roce_op_create_premul() yields */
};

struct roce_client;  /* a connection to the daemon */
struct roce_comm;    /* a communicator */
struct roce_request; /* an operation in flight */
struct roce_buffer;  /* registered memory */

#define ROCE_UNIQUE_ID_BYTES 256
struct roce_unique_id {
	unsigned char bytes[ROCE_UNIQUE_ID_BYTES];
};

/* ---- errors ------------------------------------------------------------------------------- */

/* Short name and one-line meaning of a status. Never NULL, static storage. */
ROCE_API const char *roce_status_name(int status);
ROCE_API const char *roce_strerror(int status);
/* The sentence of this thread's last failed call; valid until its next failing call. Never NULL. */
ROCE_API const char *roce_last_error(void);
/* "major.minor.patch" of the library. */
ROCE_API const char *roce_version(void);

/* ---- client ------------------------------------------------------------------------------- */

struct roce_client_options {
	size_t size;	  /* sizeof(struct roce_client_options) */
	const char *name; /* shown by rocectl; NULL: the program's name */
	int autostart;	  /* 1 (default): start `rocecommd --user` when no daemon runs; 0: do not */
	int timeout_ms;	  /* of connecting and of each request; 0: 10,000 */
};

/*
 * Connects to the daemon. @path: socket; NULL: $ROCECOMM_SOCKET, else the system's socket
 * (/run/rocecomm/rocecomm.sock), else the user's ($XDG_RUNTIME_DIR/rocecomm/rocecomm.sock), else a
 * user daemon is started (said once on standard error). @options: NULL for defaults.
 * Errors: NO_DAEMON, PERMISSION (with path, mode and group), VERSION, QUOTA, TIMEOUT.
 */
ROCE_API int roce_connect(const char *path, const struct roce_client_options *options,
			  struct roce_client **ret_client);
/*
 * Destroys all communicators, frees all memory from roce_mem_alloc() and disconnects. Pending
 * requests become invalid. NULL is allowed. In a forked child: releases the child's copies only.
 */
ROCE_API void roce_disconnect(struct roce_client *client);
/*
 * A descriptor for poll()/epoll: readable when an operation may have completed since the last
 * roce_event_clear(). Owned by the client. Calling it once switches the notification on.
 */
ROCE_API int roce_event_fd(struct roce_client *client, int *ret_fd);
/* Resets the descriptor; test requests after it, not before. */
ROCE_API int roce_event_clear(struct roce_client *client);

/* ---- communicators ------------------------------------------------------------------------ */

struct roce_comm_options {
	size_t size;		 /* sizeof(struct roce_comm_options) */
	const char *name;	 /* shown by rocectl; NULL: the client's name */
	int join_timeout_ms;	 /* until all ranks have joined; 0: the daemon's default (60 s) */
	int arrival_timeout_ms;	 /* a rank that does not post; 0: default (30 min); -1: never */
	int transfer_timeout_ms; /* bytes that stop; 0: default (30 s) */
};

/* Makes the id of a new communicator; this host's daemon is its root. Hand it to all ranks. */
ROCE_API int roce_get_unique_id(struct roce_client *client, struct roce_unique_id *ret_id);
/*
 * Joins rank @rank of @size; returns when all have joined. Collective over all ranks.
 * Errors: INVALID, EXISTS (rank or id taken), MISMATCH (sizes differ), UNREACHABLE, TIMEOUT
 * (names the ranks that are missing), PEER_DIED, QUOTA.
 */
ROCE_API int roce_comm_init(struct roce_client *client, const struct roce_unique_id *id, int rank,
			    int size, const struct roce_comm_options *options,
			    struct roce_comm **ret_comm);
/*
 * The same with rank, size and meeting place from the environment: torchrun (RANK, WORLD_SIZE,
 * MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID), Open MPI (OMPI_COMM_WORLD_RANK, _SIZE), PMIx
 * (PMIX_RANK, PMIX_NAMESPACE), Slurm (SLURM_PROCID, SLURM_NTASKS, SLURM_JOB_ID, SLURM_STEP_ID).
 * The root is the daemon on MASTER_ADDR (or ROCECOMM_ROOT=address[:port]); with neither, all ranks
 * must be on this host; and all must run under the same user number. Errors as roce_comm_init();
 * INVALID lists what was looked for.
 */
ROCE_API int roce_comm_init_env(struct roce_client *client, const struct roce_comm_options *options,
				struct roce_comm **ret_comm);
/*
 * Splits: ranks with the same @color (>= 0) form a new communicator, ordered by (key, old rank).
 * A negative colour joins none: *ret_new = NULL. Collective over @comm.
 */
ROCE_API int roce_comm_split(struct roce_comm *comm, int color, int key,
			     const struct roce_comm_options *options, struct roce_comm **ret_new);
ROCE_API int roce_comm_dup(struct roce_comm *comm, struct roce_comm **ret_new);
/* Frees the communicator; operations in flight end with ROCE_ERR_ABORTED. NULL is allowed. */
ROCE_API int roce_comm_destroy(struct roce_comm *comm);
/*
 * Ends all operations of the communicator on all ranks with ROCE_ERR_ABORTED, at once. The handle
 * stays valid for roce_comm_error() and roce_comm_destroy(). Splits of it are not affected.
 */
ROCE_API int roce_comm_abort(struct roce_comm *comm);

ROCE_API int roce_comm_rank(const struct roce_comm *comm);
ROCE_API int roce_comm_size(const struct roce_comm *comm);
/* Number of hosts; host (0 ..) of a rank; name of a host, valid as long as the communicator. */
ROCE_API int roce_comm_hosts(const struct roce_comm *comm);
ROCE_API int roce_comm_host_of(const struct roce_comm *comm, int rank);
ROCE_API const char *roce_comm_host_name(const struct roce_comm *comm, int host);
/* The transport in use and why, in words, as observed when it was set up. */
ROCE_API const char *roce_comm_path(const struct roce_comm *comm);
/*
 * The last asynchronous error: ROCE_OK while the communicator works, else the sticky error; its
 * sentence goes to @text (at most @text_size bytes with the final 0; may be NULL).
 */
ROCE_API int roce_comm_error(struct roce_comm *comm, char *text, size_t text_size);

/* A reduction that multiplies each rank's input by that rank's @scalar before the sum. For integer
 * dtypes the scalar must be integral. Local to the communicator handle; at most 64. */
ROCE_API int roce_op_create_premul(struct roce_comm *comm, double scalar, int *ret_op);
ROCE_API int roce_op_free(struct roce_comm *comm, int op);

/* ---- memory ------------------------------------------------------------------------------- */

enum roce_mem_flags {
	ROCE_MEM_HUGE = 1, /* ask for huge pages; falls back silently to normal ones */
};

/* Memory shared with the daemon, never copied on this host. Page aligned, zeroed. @size > 0. */
ROCE_API int roce_mem_alloc(struct roce_client *client, size_t size, unsigned int flags,
			    void **ret_ptr);
/* Waits until no operation uses it, then frees. @ptr: from roce_mem_alloc(); NULL is allowed. */
ROCE_API int roce_mem_free(struct roce_client *client, void *ptr);
/*
 * Registers memory that the caller owns: collectives on it go through a shared staging area that
 * is kept ready (one copy each way). Unregistered pointers work too; registering keeps the staging
 * warm and charges it now rather than at the first operation. Ranges must not overlap.
 */
ROCE_API int roce_mem_register(struct roce_client *client, void *ptr, size_t size,
			       struct roce_buffer **ret_buffer);
ROCE_API int roce_mem_deregister(struct roce_buffer *buffer);
/*
 * Shares the caller's memory in place: its whole pages become pages that the daemon maps, too, with
 * the same content at the same addresses, and are not copied any more; the bytes before the first
 * and after the last are. Nobody may write there during the call. The memory must be private,
 * anonymous and writable (else UNSUPPORTED), as from malloc(). EXISTS: part of it is known already,
 * or an operation in flight writes there.
 *
 * roce_mem_unshare() ends it, before the memory is freed. With @free_fn it then calls
 * free_fn(@arg), which frees the memory: its content is lost before. So a deleter can be replaced
 * by roce_mem_unshare() and the buffer; in this use it may come after roce_disconnect() and in a
 * forked child.
 */
ROCE_API int roce_mem_share(struct roce_client *client, void *ptr, size_t size,
			    void (*free_fn)(void *arg), void *arg, struct roce_buffer **ret_buffer);
ROCE_API void roce_mem_unshare(void *buffer);
/*
 * Memory of a GPU needs no registration: it is handed to the daemon, allocation by allocation, when
 * it is first used, and found again as long as the driver knows it as the same. Operations without
 * a stream take it too, if the caller has synchronised with what fills it.
 *
 * roce_mem_forget() gives back what was handed over of [ptr, ptr + size), or, with @size 0, what
 * has been freed since; returns when no operation uses it. Call it before memory is returned to the
 * driver to have it free at once: otherwise the daemon keeps it until the next hand-over.
 */
ROCE_API int roce_mem_forget(struct roce_client *client, const void *ptr, size_t size);
/* How memory at @ptr reaches the daemon, and why that way, in words. Hands it over if need be. */
ROCE_API int roce_mem_path(struct roce_client *client, const void *ptr, char *text,
			   size_t text_size);
/* The registration or allocation that holds [ptr, ptr + size). Errors: NOT_FOUND. */
ROCE_API int roce_mem_lookup(struct roce_client *client, const void *ptr, size_t size,
			     struct roce_buffer **ret_buffer);
ROCE_API void *roce_buffer_ptr(const struct roce_buffer *buffer);
ROCE_API size_t roce_buffer_size(const struct roce_buffer *buffer);
/* 1: shared with the daemon (never copied), 0: staged. */
ROCE_API int roce_buffer_is_shared(const struct roce_buffer *buffer);

/* ---- operations --------------------------------------------------------------------------- */

/*
 * Each comes twice: roce_iX() posts and yields a request, roce_X() also waits for it. Counts are in
 * elements of @dtype, from 0 up. Block collectives take the count of one rank's block. Memory may
 * be plain, registered or from roce_mem_alloc(), and needs no alignment.
 *
 * In place: send == recv for allreduce, reduce (root), broadcast, alltoall(v); for allgather and
 * gather (root) send == recv + rank * count elements; for reduce-scatter and scatter (root)
 * recv == send + rank * count. Any other overlap of send and recv is ROCE_ERR_INVALID.
 *
 * The buffers belong to the operation until it is complete. Errors of the arguments are returned at
 * once and nothing is posted; later errors come from the wait.
 */
ROCE_API int roce_iallreduce(const void *send, void *recv, size_t count, int dtype, int op,
			     struct roce_comm *comm, struct roce_request **ret_request);
ROCE_API int roce_ireduce(const void *send, void *recv, size_t count, int dtype, int op, int root,
			  struct roce_comm *comm, struct roce_request **ret_request);
ROCE_API int roce_ibroadcast(void *buf, size_t count, int dtype, int root, struct roce_comm *comm,
			     struct roce_request **ret_request);
ROCE_API int roce_iallgather(const void *send, void *recv, size_t count, int dtype,
			     struct roce_comm *comm, struct roce_request **ret_request);
ROCE_API int roce_ireduce_scatter(const void *send, void *recv, size_t count, int dtype, int op,
				  struct roce_comm *comm, struct roce_request **ret_request);
ROCE_API int roce_igather(const void *send, void *recv, size_t count, int dtype, int root,
			  struct roce_comm *comm, struct roce_request **ret_request);
ROCE_API int roce_iscatter(const void *send, void *recv, size_t count, int dtype, int root,
			   struct roce_comm *comm, struct roce_request **ret_request);
ROCE_API int roce_ialltoall(const void *send, void *recv, size_t count, int dtype,
			    struct roce_comm *comm, struct roce_request **ret_request);
/* v-variants: @counts, @displs: one entry a rank, in elements; read before the call returns. */
ROCE_API int roce_iallgatherv(const void *send, size_t send_count, void *recv, const size_t *counts,
			      const size_t *displs, int dtype, struct roce_comm *comm,
			      struct roce_request **ret_request);
/* Block r of @send begins at the sum of counts[0 .. r-1]. */
ROCE_API int roce_ireduce_scatterv(const void *send, void *recv, const size_t *counts, int dtype,
				   int op, struct roce_comm *comm,
				   struct roce_request **ret_request);
/* @counts, @displs: read on the root only. */
ROCE_API int roce_igatherv(const void *send, size_t send_count, void *recv, const size_t *counts,
			   const size_t *displs, int dtype, int root, struct roce_comm *comm,
			   struct roce_request **ret_request);
ROCE_API int roce_iscatterv(const void *send, const size_t *counts, const size_t *displs,
			    void *recv, size_t recv_count, int dtype, int root,
			    struct roce_comm *comm, struct roce_request **ret_request);
ROCE_API int roce_ialltoallv(const void *send, const size_t *send_counts, const size_t *send_displs,
			     void *recv, const size_t *recv_counts, const size_t *recv_displs,
			     int dtype, struct roce_comm *comm, struct roce_request **ret_request);
ROCE_API int roce_ibarrier(struct roce_comm *comm, struct roce_request **ret_request);
/*
 * Point to point: the n-th send from a to b meets the n-th receive on b from a, whatever other
 * operations are posted between; counts and dtypes must be equal. A rank may send to itself.
 */
ROCE_API int roce_isend(const void *buf, size_t count, int dtype, int dest, struct roce_comm *comm,
			struct roce_request **ret_request);
ROCE_API int roce_irecv(void *buf, size_t count, int dtype, int source, struct roce_comm *comm,
			struct roce_request **ret_request);

ROCE_API int roce_allreduce(const void *send, void *recv, size_t count, int dtype, int op,
			    struct roce_comm *comm);
ROCE_API int roce_reduce(const void *send, void *recv, size_t count, int dtype, int op, int root,
			 struct roce_comm *comm);
ROCE_API int roce_broadcast(void *buf, size_t count, int dtype, int root, struct roce_comm *comm);
ROCE_API int roce_allgather(const void *send, void *recv, size_t count, int dtype,
			    struct roce_comm *comm);
ROCE_API int roce_reduce_scatter(const void *send, void *recv, size_t count, int dtype, int op,
				 struct roce_comm *comm);
ROCE_API int roce_gather(const void *send, void *recv, size_t count, int dtype, int root,
			 struct roce_comm *comm);
ROCE_API int roce_scatter(const void *send, void *recv, size_t count, int dtype, int root,
			  struct roce_comm *comm);
ROCE_API int roce_alltoall(const void *send, void *recv, size_t count, int dtype,
			   struct roce_comm *comm);
ROCE_API int roce_allgatherv(const void *send, size_t send_count, void *recv, const size_t *counts,
			     const size_t *displs, int dtype, struct roce_comm *comm);
ROCE_API int roce_reduce_scatterv(const void *send, void *recv, const size_t *counts, int dtype,
				  int op, struct roce_comm *comm);
ROCE_API int roce_gatherv(const void *send, size_t send_count, void *recv, const size_t *counts,
			  const size_t *displs, int dtype, int root, struct roce_comm *comm);
ROCE_API int roce_scatterv(const void *send, const size_t *counts, const size_t *displs, void *recv,
			   size_t recv_count, int dtype, int root, struct roce_comm *comm);
ROCE_API int roce_alltoallv(const void *send, const size_t *send_counts, const size_t *send_displs,
			    void *recv, const size_t *recv_counts, const size_t *recv_displs,
			    int dtype, struct roce_comm *comm);
ROCE_API int roce_barrier(struct roce_comm *comm);
/*
 * roce_iallreduce() and roce_wait() as one call of one argument, for languages in which arguments
 * cost more than the call. ROCE_IN_PROGRESS: wait for args->request. Not inside a group.
 */
struct roce_allreduce_args {
	size_t size; /* sizeof(struct roce_allreduce_args) */
	const void *send;
	void *recv;
	size_t count;
	struct roce_comm *comm;
	int dtype;
	int op;
	int timeout_ms;		      /* as of roce_wait() */
	struct roce_request *request; /* set; NULL when the operation has ended or was not posted */
};
ROCE_API int roce_allreduce_call(struct roce_allreduce_args *args);
ROCE_API int roce_send(const void *buf, size_t count, int dtype, int dest, struct roce_comm *comm);
ROCE_API int roce_recv(void *buf, size_t count, int dtype, int source, struct roce_comm *comm);
/* Sends and receives at the same time, without deadlock; the two ranks may differ. */
ROCE_API int roce_sendrecv(const void *send, size_t send_count, int dest, void *recv,
			   size_t recv_count, int source, int dtype, struct roce_comm *comm);

/* ---- operations in the order of a GPU stream ------------------------------------------------ */

/*
 * Each posts its operation behind the work that is on @stream (a CUstream or cudaStream_t; NULL:
 * the legacy default stream), and has later work of the stream wait for the result. The CPU does
 * not wait: the stream writes a word when its turn has come, the daemons then run the operation
 * without a kernel, and the stream goes on. Order on several streams: with events, as for kernels.
 *
 * Memory: of a device, pinned, managed, or from roce_mem_alloc(); plain host memory is refused,
 * since a stream cannot copy it. Memory of a device is handed to the daemon when it is first seen
 * (roce_mem_path() says how). @ret_request: may be NULL; else it is complete when the stream has
 * the result, and has to be waited for or tested like any other.
 *
 * Failures: a communicator that fails, is aborted or loses its daemon lets its streams go within
 * 2 s, with undefined data; look at roce_comm_error() after synchronising. A stream that is being
 * captured into a graph is refused (ROCE_ERR_UNSUPPORTED). In a group the operations are posted,
 * and their streams wait, at its end.
 */
ROCE_API int roce_allreduce_stream(const void *send, void *recv, size_t count, int dtype, int op,
				   struct roce_comm *comm, void *stream,
				   struct roce_request **ret_request);
ROCE_API int roce_reduce_stream(const void *send, void *recv, size_t count, int dtype, int op,
				int root, struct roce_comm *comm, void *stream,
				struct roce_request **ret_request);
ROCE_API int roce_broadcast_stream(void *buf, size_t count, int dtype, int root,
				   struct roce_comm *comm, void *stream,
				   struct roce_request **ret_request);
ROCE_API int roce_allgather_stream(const void *send, void *recv, size_t count, int dtype,
				   struct roce_comm *comm, void *stream,
				   struct roce_request **ret_request);
ROCE_API int roce_reduce_scatter_stream(const void *send, void *recv, size_t count, int dtype,
					int op, struct roce_comm *comm, void *stream,
					struct roce_request **ret_request);
ROCE_API int roce_gather_stream(const void *send, void *recv, size_t count, int dtype, int root,
				struct roce_comm *comm, void *stream,
				struct roce_request **ret_request);
ROCE_API int roce_scatter_stream(const void *send, void *recv, size_t count, int dtype, int root,
				 struct roce_comm *comm, void *stream,
				 struct roce_request **ret_request);
ROCE_API int roce_alltoall_stream(const void *send, void *recv, size_t count, int dtype,
				  struct roce_comm *comm, void *stream,
				  struct roce_request **ret_request);
ROCE_API int roce_barrier_stream(struct roce_comm *comm, void *stream,
				 struct roce_request **ret_request);
ROCE_API int roce_allgatherv_stream(const void *send, size_t send_count, void *recv,
				    const size_t *counts, const size_t *displs, int dtype,
				    struct roce_comm *comm, void *stream,
				    struct roce_request **ret_request);
ROCE_API int roce_reduce_scatterv_stream(const void *send, void *recv, const size_t *counts,
					 int dtype, int op, struct roce_comm *comm, void *stream,
					 struct roce_request **ret_request);
ROCE_API int roce_gatherv_stream(const void *send, size_t send_count, void *recv,
				 const size_t *counts, const size_t *displs, int dtype, int root,
				 struct roce_comm *comm, void *stream,
				 struct roce_request **ret_request);
ROCE_API int roce_scatterv_stream(const void *send, const size_t *counts, const size_t *displs,
				  void *recv, size_t recv_count, int dtype, int root,
				  struct roce_comm *comm, void *stream,
				  struct roce_request **ret_request);
ROCE_API int roce_alltoallv_stream(const void *send, const size_t *send_counts,
				   const size_t *send_displs, void *recv, const size_t *recv_counts,
				   const size_t *recv_displs, int dtype, struct roce_comm *comm,
				   void *stream, struct roce_request **ret_request);
ROCE_API int roce_send_stream(const void *buf, size_t count, int dtype, int dest,
			      struct roce_comm *comm, void *stream,
			      struct roce_request **ret_request);
ROCE_API int roce_recv_stream(void *buf, size_t count, int dtype, int source,
			      struct roce_comm *comm, void *stream,
			      struct roce_request **ret_request);

/* ---- completion --------------------------------------------------------------------------- */

/*
 * Each takes the request by address and, once it is complete (well or not), frees it and sets the
 * pointer to NULL; a NULL request counts as complete. @timeout_ms: -1 waits for ever, 0 does not
 * wait. ROCE_IN_PROGRESS: not complete, the request is untouched.
 */
ROCE_API int roce_wait(struct roce_request **request, int timeout_ms);
ROCE_API int roce_test(struct roce_request **request);
/* Waits for all; returns the first error by index, after all that completed are freed. */
ROCE_API int roce_wait_all(struct roce_request **requests, size_t n, int timeout_ms);
/* Waits for one; *ret_index is it (n when all are NULL), the return value its status. */
ROCE_API int roce_wait_any(struct roce_request **requests, size_t n, int timeout_ms,
			   size_t *ret_index);

/*
 * Between start and end (of this thread) operations are collected and then posted as one batch, so
 * that any order of sends, receives and collectives over any communicators cannot deadlock.
 * Blocking calls inside a group are completed by roce_group_end(), which returns their first error.
 * Groups nest; the outermost end posts. Nothing is posted if a call inside failed: end returns that
 * error.
 */
ROCE_API int roce_group_start(struct roce_client *client);
ROCE_API int roce_group_end(struct roce_client *client);

#ifdef __cplusplus
}
#endif

#endif
