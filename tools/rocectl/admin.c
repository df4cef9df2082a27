/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Admin: implementation, on the library's own connection code
 *
 * Thread: main      Owns: see admin.h      Locks: none
 */
#include "tools/rocectl/admin.h"

#include <stdio.h>
#include <string.h>

#include "libclient/clock.h"
#include "libclient/conn.h"
#include "libclient/error.h"
#include "libclient/path.h"
#include "libclient/roceclient.h"
#include "proto/base.h"
#include "proto/msg.h"

#define ADMIN_TIMEOUT_MS 5000
#define CHECK_TIMEOUT_MS 90000 /* connecting and all trials, however slow */

struct admin {
	struct conn conn;
	bool has_conn;
	char path[PATH_MAX_SOCKET];
	Rocecomm__Welcome *welcome;
};

static void admin_free_p(struct admin **admin)
{
	admin_free(*admin);
}

static int admin_failed(int status)
{
	fprintf(stderr, "rocectl: %s\n", error_last());
	return status == ROCE_ERR_NO_DAEMON || status == ROCE_ERR_TIMEOUT ||
			       status == ROCE_ERR_SHUTDOWN
		       ? ROCECTL_NO_DAEMON
		       : ROCECTL_FAILED;
}

/* Tries one path. Return: 0, PATH_E_ABSENT, PATH_E_REFUSED, with the sentence set. */
static int admin_try(struct admin *admin, const char *path, int *ret_fd, int *ret_status)
{
	snprintf(admin->path, sizeof(admin->path), "%s", path);
	return path_connect(path, clock_deadline(ADMIN_TIMEOUT_MS), ret_fd, ret_status);
}

/* The same order as roce_connect(), without starting anything. */
static int admin_connect(struct admin *admin, const char *path, int *ret_fd)
{
	const char *env = getenv("ROCECOMM_SOCKET");
	char user[PATH_MAX_SOCKET];
	int status = ROCE_ERR_NO_DAEMON;
	int r;

	if (!path && env && env[0] != '\0') {
		path = env;
	}
	if (path) {
		return admin_try(admin, path, ret_fd, &status) == 0 ? 0 : status;
	}
	r = admin_try(admin, PATH_SYSTEM_SOCKET, ret_fd, &status);
	if (r != PATH_E_ABSENT) {
		return r == 0 ? 0 : status;
	}
	if (path_user_socket(user, sizeof(user), 0) != 0) {
		return ROCE_ERR_NO_DAEMON;
	}
	r = admin_try(admin, user, ret_fd, &status);
	if (r == PATH_E_ABSENT) {
		return error_set(ROCE_ERR_NO_DAEMON,
				 "no daemon runs here: nobody listens at %s or %s; start one "
				 "(systemctl start rocecommd), or name its socket with --socket",
				 PATH_SYSTEM_SOCKET, user);
	}
	return r == 0 ? 0 : status;
}

static int admin_hello(struct admin *admin)
{
	Rocecomm__ClientHello msg = ROCECOMM__CLIENT_HELLO__INIT;
	struct conn_reply reply;
	int r;

	r = conn_hello(&admin->conn, ADMIN_TIMEOUT_MS);
	if (r != 0) {
		return r;
	}
	msg.name = (char *)"rocectl";
	msg.version = (char *)roce_version();
	msg.pid = (uint32_t)getpid();
	msg.admin = true;
	r = conn_call(&admin->conn, MSG_CLIENT_HELLO, &msg, -1, ADMIN_TIMEOUT_MS, MSG_WELCOME,
		      &reply);
	if (r != 0) {
		return r;
	}
	admin->welcome = rocecomm__welcome__unpack(NULL, reply.size, reply.body);
	conn_reply_deinit(&reply);
	if (!admin->welcome) {
		return error_set(ROCE_ERR_PROTOCOL, "the daemon sent an unreadable welcome");
	}
	return 0;
}

int admin_new(const struct rocectl *ctl, struct admin **ret)
{
	attr_cleanup(admin_free_p) struct admin *admin = NULL;
	int fd = -1;
	int r;

	admin = calloc(1, sizeof(*admin));
	if (!admin) {
		error_set(ROCE_ERR_NO_MEMORY, "no memory");
		return admin_failed(ROCE_ERR_NO_MEMORY);
	}
	r = admin_connect(admin, ctl->socket, &fd);
	if (r != 0) {
		return admin_failed(r);
	}
	if (conn_init(&admin->conn, fd) < 0) {
		base_close(fd);
		error_set(ROCE_ERR_NO_MEMORY, "no memory");
		return admin_failed(ROCE_ERR_NO_MEMORY);
	}
	admin->has_conn = true;
	r = admin_hello(admin);
	if (r != 0) {
		return admin_failed(r);
	}
	*ret = take_ptr(admin);
	return ROCECTL_OK;
}

struct admin *admin_free(struct admin *admin)
{
	if (admin) {
		if (admin->welcome) {
			rocecomm__welcome__free_unpacked(admin->welcome, NULL);
		}
		if (admin->has_conn) {
			conn_deinit(&admin->conn);
		}
		free(admin);
	}
	return NULL;
}

const char *admin_path(const struct admin *admin)
{
	return admin->path;
}

const Rocecomm__Welcome *admin_welcome(const struct admin *admin)
{
	return admin->welcome;
}

/* The JSON of a reply: all that have one have it in the same place. Consumes @reply. */
static int admin_json(struct conn_reply *reply, char **ret_json)
{
	Rocecomm__StatusReply *status;

	status = rocecomm__status_reply__unpack(NULL, reply->size, reply->body);
	conn_reply_deinit(reply);
	if (!status) {
		error_set(ROCE_ERR_PROTOCOL, "the daemon sent an unreadable reply");
		return admin_failed(ROCE_ERR_PROTOCOL);
	}
	*ret_json = strdup(status->json);
	rocecomm__status_reply__free_unpacked(status, NULL);
	if (!*ret_json) {
		error_set(ROCE_ERR_NO_MEMORY, "no memory for the reply");
		return admin_failed(ROCE_ERR_NO_MEMORY);
	}
	return ROCECTL_OK;
}

int admin_status(struct admin *admin, char **ret_json, bool *ret_own)
{
	Rocecomm__StatusGet msg = ROCECOMM__STATUS_GET__INIT;
	struct conn_reply reply;
	int r;

	msg.all = true;
	r = conn_call(&admin->conn, MSG_STATUS_GET, &msg, -1, ADMIN_TIMEOUT_MS, MSG_STATUS_REPLY,
		      &reply);
	if (r == ROCE_ERR_PERMISSION) {
		msg.all = false;
		r = conn_call(&admin->conn, MSG_STATUS_GET, &msg, -1, ADMIN_TIMEOUT_MS,
			      MSG_STATUS_REPLY, &reply);
	}
	if (r != 0) {
		return admin_failed(r);
	}
	*ret_own = !msg.all;
	return admin_json(&reply, ret_json);
}

int admin_links(struct admin *admin, char **ret_json)
{
	Rocecomm__LinksGet msg = ROCECOMM__LINKS_GET__INIT;
	struct conn_reply reply;
	int r;

	r = conn_call(&admin->conn, MSG_LINKS_GET, &msg, -1, ADMIN_TIMEOUT_MS, MSG_LINKS_REPLY,
		      &reply);
	return r != 0 ? admin_failed(r) : admin_json(&reply, ret_json);
}

int admin_paths(struct admin *admin, const char *peer, char **ret_json)
{
	Rocecomm__PathsGet msg = ROCECOMM__PATHS_GET__INIT;
	struct conn_reply reply;
	int r;

	msg.peer = (char *)peer;
	r = conn_call(&admin->conn, MSG_PATHS_GET, &msg, -1, ADMIN_TIMEOUT_MS, MSG_PATHS_REPLY,
		      &reply);
	return r != 0 ? admin_failed(r) : admin_json(&reply, ret_json);
}

int admin_check(struct admin *admin, const char *peer, unsigned int ms, char **ret_json,
		bool *ret_unknown)
{
	Rocecomm__CheckPeer msg = ROCECOMM__CHECK_PEER__INIT;
	struct conn_reply reply;
	int r;

	*ret_unknown = false;
	msg.peer = (char *)peer;
	msg.test_ms = ms;
	r = conn_call(&admin->conn, MSG_CHECK_PEER, &msg, -1, CHECK_TIMEOUT_MS + (int)ms,
		      MSG_CHECK_REPLY, &reply);
	if (r == ROCE_ERR_NOT_FOUND) {
		*ret_unknown = true;
		return ROCECTL_FAILED;
	}
	return r != 0 ? admin_failed(r) : admin_json(&reply, ret_json);
}

int admin_config(struct admin *admin, Rocecomm__ConfigReply **ret)
{
	Rocecomm__ConfigGet msg = ROCECOMM__CONFIG_GET__INIT;
	struct conn_reply reply;
	int r;

	r = conn_call(&admin->conn, MSG_CONFIG_GET, &msg, -1, ADMIN_TIMEOUT_MS, MSG_CONFIG_REPLY,
		      &reply);
	if (r != 0) {
		return admin_failed(r);
	}
	*ret = rocecomm__config_reply__unpack(NULL, reply.size, reply.body);
	conn_reply_deinit(&reply);
	if (!*ret) {
		error_set(ROCE_ERR_PROTOCOL, "the daemon sent an unreadable configuration");
		return admin_failed(ROCE_ERR_PROTOCOL);
	}
	return ROCECTL_OK;
}
