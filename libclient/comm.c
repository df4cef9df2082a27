/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Communicator: implementation of the communicator calls
 *
 * Thread: any      Owns: see comm.h      Locks: the client's lock, inside
 */
#include "libclient/comm.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "libclient/client.h"
#include "libclient/error.h"
#include "libclient/group.h"
#include "libclient/roceclient.h"
#include "proto/base.h"
#include "proto/msg.h"
#include "proto/types.h"
#include "rocecomm.pb-c.h"

static_assert(ROCE_UNIQUE_ID_BYTES == LIMIT_UNIQUE_ID, "unique id");

int comm_failed_error(const struct roce_comm *comm)
{
	/* acquire: pairs with the release in comm_fail() */
	int failed = atomic_load_explicit(&comm->failed, memory_order_acquire);

	return failed == 0 ? 0 : error_set(failed, "%s", comm->failed_text);
}

int comm_enter(const struct roce_comm *comm)
{
	int r;

	if (!comm) {
		return error_set(ROCE_ERR_INVALID, "the communicator is NULL");
	}
	r = client_enter(comm->client);
	if (r == 0 && conn_dead(&comm->client->conn) != 0) {
		r = conn_dead_error(&comm->client->conn);
	}
	return r == 0 ? comm_failed_error(comm) : r;
}

/* Makes a failure sticky; the first one stays. Lock held. */
static void comm_fail(struct roce_comm *comm, int status, const char *text)
{
	if (atomic_load_explicit(&comm->failed, memory_order_relaxed) == 0) {
		error_copy(comm->failed_text, text);
		/* release: the text is whole before the status shows */
		atomic_store_explicit(&comm->failed, status, memory_order_release);
	}
}

/* Asks the daemon. Return: 0 and the sticky status (0: none) and text, or a status. */
static int comm_query_error(struct roce_client *client, uint32_t id, int *ret_status, char *text,
			    size_t text_size)
{
	Rocecomm__CommError msg = ROCECOMM__COMM_ERROR__INIT;
	Rocecomm__CommErrorReply *answer;
	struct conn_reply reply;
	int r;

	msg.comm = id;
	r = conn_call(&client->conn, MSG_COMM_ERROR, &msg, -1, client->timeout_ms,
		      MSG_COMM_ERROR_REPLY, &reply);
	if (r != 0) {
		return r;
	}
	answer = rocecomm__comm_error_reply__unpack(NULL, reply.size, reply.body);
	conn_reply_deinit(&reply);
	if (!answer || answer->status > ROCE_ERR_INTERNAL || answer->status == ROCE_IN_PROGRESS) {
		r = error_set(ROCE_ERR_PROTOCOL, "the daemon sent an unreadable CommErrorReply");
	} else {
		*ret_status = (int)answer->status;
		snprintf(text, text_size, "%s",
			 answer->text[0] ? answer->text : roce_strerror(*ret_status));
	}
	if (answer) {
		rocecomm__comm_error_reply__free_unpacked(answer, NULL);
	}
	return r;
}

static struct roce_comm *comm_find(struct roce_client *client, uint32_t id)
{
	struct roce_comm *comm = client->comms;

	while (comm && comm->id != id) {
		comm = comm->next;
	}
	return comm;
}

int comm_op_error(struct roce_client *client, uint32_t id, uint8_t kind, int status)
{
	char text[LIMIT_ERROR_TEXT];
	struct roce_comm *comm;
	int sticky = 0;
	bool known;

	if (conn_dead(&client->conn) == status) {
		return conn_dead_error(&client->conn);
	}
	pthread_mutex_lock(&client->lock);
	comm = comm_find(client, id);
	known = comm && comm_failed_error(comm) == status;
	pthread_mutex_unlock(&client->lock);
	if (known) {
		return status;
	}
	if (!comm || comm_query_error(client, id, &sticky, text, sizeof(text)) != 0 ||
	    sticky == 0) {
		return error_set(status, "%s of communicator %u%s: %s", coll_kind_name(kind), id,
				 comm ? "" : " (destroyed meanwhile)", roce_strerror(status));
	}
	pthread_mutex_lock(&client->lock);
	comm = comm_find(client, id);
	if (comm) {
		comm_fail(comm, sticky, text);
	}
	pthread_mutex_unlock(&client->lock);
	return error_set(status, "%s", text);
}

void comm_stream_error(struct roce_client *client, uint32_t id, uint8_t kind, int status)
{
	int r = comm_op_error(client, id, kind, status);
	struct roce_comm *comm;

	pthread_mutex_lock(&client->lock);
	comm = comm_find(client, id);
	if (comm) {
		comm_fail(comm, r, error_last());
	}
	pthread_mutex_unlock(&client->lock);
}

void comm_op_ended(struct roce_comm *comm, uint8_t kind, bool staged)
{
	if (coll_kind_is_p2p(kind)) {
		comm->p2p_open--;
	}
	if (staged) {
		comm->staged_open--;
	}
}

void comm_free(struct roce_comm *comm)
{
	if (!comm) {
		return;
	}
	for (int i = 0; comm->host_names && i < comm->n_hosts; i++) {
		free(comm->host_names[i]);
	}
	free(comm->host_names);
	free(comm->host_of);
	free(comm->sent);
	free(comm->path);
	free(comm);
}

/* Fills the handle from the daemon's answer. Return: 0, -EPROTO, -ENOMEM. */
static int comm_fill(struct roce_comm *comm, const Rocecomm__CommReady *ready)
{
	if (ready->size < 1 || ready->size > LIMIT_COMM_RANKS || ready->rank >= ready->size ||
	    ready->n_host_of_rank != ready->size || ready->n_hosts < 1 ||
	    ready->n_hosts > LIMIT_COMM_HOSTS) {
		return -EPROTO;
	}
	comm->id = ready->comm;
	comm->uid = ready->uid;
	comm->rank = (int)ready->rank;
	comm->size = (int)ready->size;
	comm->host_names = calloc(ready->n_hosts, sizeof(char *));
	comm->host_of = calloc(ready->size, sizeof(uint32_t));
	/* Pages of ranks that are never spoken to stay untouched. */
	comm->sent = calloc(2 * (size_t)ready->size, sizeof(uint64_t));
	comm->path = strdup(ready->path);
	if (!comm->host_names || !comm->host_of || !comm->sent || !comm->path) {
		return -ENOMEM;
	}
	comm->received = comm->sent + ready->size;
	comm->n_hosts = (int)ready->n_hosts;
	for (size_t i = 0; i < ready->n_hosts; i++) {
		comm->host_names[i] = strdup(ready->hosts[i]->name);
		if (!comm->host_names[i]) {
			return -ENOMEM;
		}
	}
	for (size_t i = 0; i < ready->size; i++) {
		if (ready->host_of_rank[i] >= ready->n_hosts) {
			return -EPROTO;
		}
		comm->host_of[i] = ready->host_of_rank[i];
	}
	return 0;
}

static void comm_link(struct roce_comm *comm)
{
	struct roce_client *client = comm->client;

	pthread_mutex_lock(&client->lock);
	comm->next = client->comms;
	comm->prev = &client->comms;
	if (comm->next) {
		comm->next->prev = &comm->next;
	}
	client->comms = comm;
	pthread_mutex_unlock(&client->lock);
}

/* Sends a request whose answer is a communicator. @ret: NULL for a split that joins none. */
static int comm_request(struct roce_client *client, unsigned int type, const void *msg,
			int timeout_ms, int rank, int size, struct roce_comm **ret)
{
	Rocecomm__CommReady *ready;
	struct conn_reply reply;
	struct roce_comm *comm;
	int r;

	r = conn_call(&client->conn, type, msg, -1, timeout_ms, MSG_COMM_READY, &reply);
	if (r != 0) {
		return r;
	}
	ready = rocecomm__comm_ready__unpack(NULL, reply.size, reply.body);
	conn_reply_deinit(&reply);
	if (ready && ready->none) {
		*ret = NULL;
		rocecomm__comm_ready__free_unpacked(ready, NULL);
		return 0;
	}
	comm = calloc(1, sizeof(*comm));
	r = !comm ? -ENOMEM : !ready ? -EPROTO : comm_fill(comm, ready);
	if (r == 0 && size > 0 && (comm->size != size || comm->rank != rank)) {
		r = -EPROTO;
	}
	if (ready) {
		rocecomm__comm_ready__free_unpacked(ready, NULL);
	}
	if (r != 0) {
		comm_free(comm);
		return r == -ENOMEM ? error_set(ROCE_ERR_NO_MEMORY, "no memory for a communicator")
				    : error_set(ROCE_ERR_PROTOCOL,
						"the daemon sent an unreadable CommReady");
	}
	comm->client = client;
	comm_link(comm);
	*ret = comm;
	return 0;
}

/* Fills the options message. @ret_timeout: how long to wait for the answer; -1: as long as the
 * daemon lives, since its own time-out is not known here. */
static int comm_options(struct roce_client *client, const struct roce_comm_options *options,
			struct roce_comm_options *o, Rocecomm__CommOptions *msg, int *ret_timeout)
{
	int r = client_options("struct roce_comm_options", options, o, sizeof(*o));

	if (r != 0) {
		return r;
	}
	if (o->name && strlen(o->name) >= LIMIT_NAME) {
		return error_set(ROCE_ERR_INVALID,
				 "the communicator's name has %zu bytes, at most "
				 "%d are allowed",
				 strlen(o->name), LIMIT_NAME - 1);
	}
	if (o->join_timeout_ms < 0 || o->transfer_timeout_ms < 0 || o->arrival_timeout_ms < -1) {
		return error_set(ROCE_ERR_INVALID,
				 "time-outs of a communicator: join %d, arrival %d, transfer %d: "
				 "0 means the default, only arrival may be -1 (never)",
				 o->join_timeout_ms, o->arrival_timeout_ms, o->transfer_timeout_ms);
	}
	msg->name = (char *)(uintptr_t)(o->name ? o->name : client->name);
	msg->join_timeout_ms = (uint32_t)o->join_timeout_ms;
	msg->arrival_timeout_ms =
		o->arrival_timeout_ms < 0 ? UINT32_MAX : (uint32_t)o->arrival_timeout_ms;
	msg->transfer_timeout_ms = (uint32_t)o->transfer_timeout_ms;
	*ret_timeout = -1;
	if (o->join_timeout_ms > 0) {
		*ret_timeout = o->join_timeout_ms > INT_MAX - client->timeout_ms
				       ? INT_MAX
				       : o->join_timeout_ms + client->timeout_ms;
	}
	return 0;
}

int roce_get_unique_id(struct roce_client *client, struct roce_unique_id *ret_id)
{
	Rocecomm__GetUniqueId msg = ROCECOMM__GET_UNIQUE_ID__INIT;
	Rocecomm__UniqueId *id;
	struct conn_reply reply;
	int r;

	r = client_enter(client);
	if (r != 0) {
		return r;
	}
	if (!ret_id) {
		return error_set(ROCE_ERR_INVALID, "roce_get_unique_id: ret_id is NULL");
	}
	r = conn_call(&client->conn, MSG_GET_UNIQUE_ID, &msg, -1, client->timeout_ms, MSG_UNIQUE_ID,
		      &reply);
	if (r != 0) {
		return r;
	}
	id = rocecomm__unique_id__unpack(NULL, reply.size, reply.body);
	conn_reply_deinit(&reply);
	if (!id || id->id.len == 0 || id->id.len > sizeof(ret_id->bytes)) {
		r = error_set(ROCE_ERR_PROTOCOL, "the daemon sent an unreadable UniqueId");
	} else {
		memset(ret_id, 0, sizeof(*ret_id));
		memcpy(ret_id->bytes, id->id.data, id->id.len);
	}
	if (id) {
		rocecomm__unique_id__free_unpacked(id, NULL);
	}
	return r;
}

static int comm_init_check(struct roce_client *client, const char *what, bool outputs, int rank,
			   int size)
{
	int r = client_enter(client);

	if (r != 0) {
		return r;
	}
	if (!outputs) {
		return error_set(ROCE_ERR_INVALID, "%s: an argument is NULL", what);
	}
	if (size < 1 || size > (int)LIMIT_COMM_RANKS) {
		return error_set(ROCE_ERR_INVALID, "%s: size %d is not in 1 .. %d", what, size,
				 (int)LIMIT_COMM_RANKS);
	}
	if (rank < 0 || rank >= size) {
		return error_set(ROCE_ERR_INVALID, "%s: rank %d is not in 0 .. %d", what, rank,
				 size - 1);
	}
	if (group_current()) {
		return error_set(ROCE_ERR_INVALID, "%s: not inside a group: end it first", what);
	}
	return 0;
}

int roce_comm_init(struct roce_client *client, const struct roce_unique_id *id, int rank, int size,
		   const struct roce_comm_options *options, struct roce_comm **ret_comm)
{
	static const struct roce_unique_id zero;
	Rocecomm__CommInit msg = ROCECOMM__COMM_INIT__INIT;
	Rocecomm__CommOptions opts = ROCECOMM__COMM_OPTIONS__INIT;
	struct roce_comm_options o;
	int timeout, r;

	r = comm_init_check(client, "roce_comm_init", id && ret_comm, rank, size);
	if (r != 0) {
		return r;
	}
	if (memcmp(id, &zero, sizeof(zero)) == 0) {
		return error_set(ROCE_ERR_INVALID,
				 "roce_comm_init: the id is all zero: rank 0 makes one with "
				 "roce_get_unique_id() and hands it to the others");
	}
	r = comm_options(client, options, &o, &opts, &timeout);
	if (r != 0) {
		return r;
	}
	msg.id.data = (uint8_t *)(uintptr_t)id->bytes;
	msg.id.len = sizeof(id->bytes);
	msg.rank = (uint32_t)rank;
	msg.size = (uint32_t)size;
	msg.options = &opts;
	return comm_request(client, MSG_COMM_INIT, &msg, timeout, rank, size, ret_comm);
}

int comm_join_env(struct roce_client *client, void *env_id, int rank, int size,
		  const struct roce_comm_options *options, struct roce_comm **ret)
{
	Rocecomm__CommInit msg = ROCECOMM__COMM_INIT__INIT;
	Rocecomm__CommOptions opts = ROCECOMM__COMM_OPTIONS__INIT;
	struct roce_comm_options o;
	int timeout, r;

	r = comm_init_check(client, "roce_comm_init_env", ret, rank, size);
	if (r == 0) {
		r = comm_options(client, options, &o, &opts, &timeout);
	}
	if (r != 0) {
		return r;
	}
	msg.rank = (uint32_t)rank;
	msg.size = (uint32_t)size;
	msg.options = &opts;
	msg.env = env_id;
	return comm_request(client, MSG_COMM_INIT, &msg, timeout, rank, size, ret);
}

int roce_comm_split(struct roce_comm *comm, int color, int key,
		    const struct roce_comm_options *options, struct roce_comm **ret_new)
{
	Rocecomm__CommSplit msg = ROCECOMM__COMM_SPLIT__INIT;
	Rocecomm__CommOptions opts = ROCECOMM__COMM_OPTIONS__INIT;
	struct roce_comm_options o;
	int timeout, r;

	r = comm_enter(comm);
	if (r != 0) {
		return r;
	}
	r = comm_init_check(comm->client, "roce_comm_split", ret_new, 0, 1);
	if (r == 0) {
		r = comm_options(comm->client, options, &o, &opts, &timeout);
	}
	if (r != 0) {
		return r;
	}
	msg.comm = comm->id;
	msg.color = color;
	msg.key = key;
	msg.options = &opts;
	return comm_request(comm->client, MSG_COMM_SPLIT, &msg, timeout, 0, 0, ret_new);
}

int roce_comm_dup(struct roce_comm *comm, struct roce_comm **ret_new)
{
	int r = comm_enter(comm);

	return r != 0 ? r : roce_comm_split(comm, 0, comm->rank, NULL, ret_new);
}

int comm_destroy(struct roce_comm *comm, int timeout_ms)
{
	Rocecomm__CommDestroy msg = ROCECOMM__COMM_DESTROY__INIT;
	struct roce_client *client = comm->client;
	int r = 0;

	if (conn_dead(&client->conn) == 0) {
		msg.comm = comm->id;
		r = conn_command(&client->conn, MSG_COMM_DESTROY, &msg, timeout_ms, MSG_DONE);
	}
	pthread_mutex_lock(&client->lock);
	request_harvest(client);
	request_detach(client, comm);
	*comm->prev = comm->next;
	if (comm->next) {
		comm->next->prev = comm->prev;
	}
	pthread_mutex_unlock(&client->lock);
	comm_free(comm);
	/* With the daemon the communicator is gone as well. */
	return r == ROCE_ERR_NO_DAEMON || r == ROCE_ERR_SHUTDOWN ? 0 : r;
}

int roce_comm_destroy(struct roce_comm *comm)
{
	int r;

	if (!comm) {
		return ROCE_OK;
	}
	r = client_enter(comm->client);
	if (r != 0) {
		return r;
	}
	if (group_current()) {
		return error_set(ROCE_ERR_INVALID,
				 "roce_comm_destroy: not inside a group: end it first");
	}
	return comm_destroy(comm, comm->client->timeout_ms);
}

int comm_abort(struct roce_comm *comm, const char *text)
{
	Rocecomm__CommAbort msg = ROCECOMM__COMM_ABORT__INIT;
	struct roce_client *client = comm->client;
	int r;

	msg.comm = comm->id;
	r = conn_command(&client->conn, MSG_COMM_ABORT, &msg, client->timeout_ms, MSG_DONE);
	if (r == 0) {
		pthread_mutex_lock(&client->lock);
		comm_fail(comm, ROCE_ERR_ABORTED, text);
		pthread_mutex_unlock(&client->lock);
	} else if (r == ROCE_ERR_TIMEOUT && atomic_load(&client->gpu.open) > 0) {
		/* Streams wait for a daemon that does not even answer: the watchdog lets them go.
		 */
		conn_die(&client->conn, ROCE_ERR_NO_DAEMON, error_last());
	}
	return r;
}

int roce_comm_abort(struct roce_comm *comm)
{
	int r;

	if (!comm) {
		return error_set(ROCE_ERR_INVALID, "roce_comm_abort: the communicator is NULL");
	}
	r = client_enter(comm->client);
	if (r != 0) {
		return r;
	}
	return comm_abort(comm,
			  "this process aborted the communicator: destroy it and join a new one");
}

int roce_comm_error(struct roce_comm *comm, char *text, size_t text_size)
{
	char words[LIMIT_ERROR_TEXT] = "";
	int status = 0, r;

	if (!comm) {
		return error_set(ROCE_ERR_INVALID, "roce_comm_error: the communicator is NULL");
	}
	r = client_enter(comm->client);
	if (r != 0) {
		return r;
	}
	r = comm_failed_error(comm);
	if (r == 0) {
		r = comm_query_error(comm->client, comm->id, &status, words, sizeof(words));
	}
	if (r == 0 && status != 0) {
		pthread_mutex_lock(&comm->client->lock);
		comm_fail(comm, status, words);
		pthread_mutex_unlock(&comm->client->lock);
		r = error_set(status, "%s", words);
	}
	if (text && text_size > 0) {
		snprintf(text, text_size, "%s", r != 0 ? error_last() : "");
	}
	return r;
}

int roce_comm_rank(const struct roce_comm *comm)
{
	return comm ? comm->rank : -1;
}

int roce_comm_size(const struct roce_comm *comm)
{
	return comm ? comm->size : -1;
}

int roce_comm_hosts(const struct roce_comm *comm)
{
	return comm ? comm->n_hosts : -1;
}

int roce_comm_host_of(const struct roce_comm *comm, int rank)
{
	return comm && rank >= 0 && rank < comm->size ? (int)comm->host_of[rank] : -1;
}

const char *roce_comm_host_name(const struct roce_comm *comm, int host)
{
	return comm && host >= 0 && host < comm->n_hosts ? comm->host_names[host] : NULL;
}

const char *roce_comm_path(const struct roce_comm *comm)
{
	return comm ? comm->path : "";
}

int roce_op_create_premul(struct roce_comm *comm, double scalar, int *ret_op)
{
	int r = comm_enter(comm);

	if (r != 0) {
		return r;
	}
	if (!ret_op) {
		return error_set(ROCE_ERR_INVALID, "roce_op_create_premul: ret_op is NULL");
	}
	pthread_mutex_lock(&comm->client->lock);
	for (int i = 0; i < COMM_PREMUL_MAX; i++) {
		if (!comm->premul[i].used) {
			comm->premul[i].used = true;
			comm->premul[i].scalar = scalar;
			pthread_mutex_unlock(&comm->client->lock);
			*ret_op = ROCE_OP_USER + i;
			return ROCE_OK;
		}
	}
	pthread_mutex_unlock(&comm->client->lock);
	return error_set(ROCE_ERR_QUOTA,
			 "roce_op_create_premul: all %d reductions of this communicator are in "
			 "use: free some with roce_op_free()",
			 COMM_PREMUL_MAX);
}

int roce_op_free(struct roce_comm *comm, int op)
{
	unsigned int slot = (unsigned int)(op - ROCE_OP_USER);
	bool used;
	int r;

	if (!comm) {
		return error_set(ROCE_ERR_INVALID, "roce_op_free: the communicator is NULL");
	}
	r = client_enter(comm->client);
	if (r != 0) {
		return r;
	}
	pthread_mutex_lock(&comm->client->lock);
	used = op >= ROCE_OP_USER && slot < COMM_PREMUL_MAX && comm->premul[slot].used;
	if (used) {
		comm->premul[slot].used = false;
	}
	pthread_mutex_unlock(&comm->client->lock);
	return used ? ROCE_OK
		    : error_set(ROCE_ERR_NOT_FOUND,
				"roce_op_free: op 0x%x is not a reduction of this communicator",
				(unsigned int)op);
}
