/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Resolve: what a configuration needs from the system
 *
 * Reading the file, users and groups to numbers, the key file's permissions, and keys that depend
 * on each other. Name services may block: this runs at start, for --check, and at a reload that the
 * operator asked for.
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "config/config.h"

/* "file:line" of a key, or where else it is from. */
static const char *where(const struct config *c, const struct config_source *source, char *buf,
			 size_t size)
{
	if (source->origin) {
		return source->origin;
	}
	if (source->line == 0) {
		return "default";
	}
	snprintf(buf, size, "%s:%u", c->file, source->line);
	return buf;
}

#define WHERE(c, name) where(c, &(c)->source[CONFIG_KEY_##name], (char[300]){0}, 300)

/* ---- reading ------------------------------------------------------------------------------ */

/* Return: bytes read, or negative errno. */
static ssize_t read_all(int fd, char *buf, size_t size)
{
	size_t have = 0;

	while (have < size) {
		ssize_t n = read(fd, buf + have, size - have);

		if (n < 0 && errno == EINTR) {
			continue;
		}
		if (n < 0) {
			return -errno;
		}
		if (n == 0) {
			break;
		}
		have += (size_t)n;
	}
	return (ssize_t)have;
}

/* See config.h. */
int config_read(struct config *c, const char *path, struct config_report *report)
{
	cleanup_free char *text = NULL;
	cleanup_close int fd = -1;
	struct stat st;
	ssize_t n;

	/* O_NONBLOCK: a FIFO in the file's place must not stop the daemon. */
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0) {
		if (errno == ENOENT) {
			return -ENOENT;
		}
		config_report_add(report, "%s: cannot open: %s", path, strerror(errno));
		return CONFIG_E_INVALID;
	}
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
		config_report_add(report, "%s: not a regular file", path);
		return CONFIG_E_INVALID;
	}
	text = malloc(CONFIG_MAX_FILE + 1);
	if (!text) {
		return err_origin(-ENOMEM);
	}
	n = read_all(fd, text, CONFIG_MAX_FILE + 1);
	if (n < 0) {
		config_report_add(report, "%s: cannot read: %s", path, strerror((int)-n));
		return CONFIG_E_INVALID;
	}
	if (n > (ssize_t)CONFIG_MAX_FILE) {
		config_report_add(report, "%s: larger than %u bytes", path, CONFIG_MAX_FILE);
		return CONFIG_E_INVALID;
	}
	return err_trace(config_parse(c, path, text, (size_t)n, report));
}

/* ---- users and groups --------------------------------------------------------------------- */

static bool number(const char *text, int64_t *ret)
{
	char *end;
	long long v;

	if (!isdigit((unsigned char)text[0])) {
		return false;
	}
	errno = 0;
	v = strtoll(text, &end, 10);
	if (errno != 0 || *end != '\0' || v >= UINT32_MAX) {
		return false;
	}
	*ret = v;
	return true;
}

static void resolve_group(struct value_group *group, const char *at, const char *key,
			  struct config_report *report)
{
	struct group *found;

	group->gid = -1;
	if (group->name[0] == '\0' || number(group->name, &group->gid)) {
		return;
	}
	found = getgrnam(group->name);
	if (!found) {
		config_report_add(report,
				  "%s: %s: there is no group '%s'; groupadd it, or correct "
				  "the name",
				  at, key, group->name);
		return;
	}
	group->gid = found->gr_gid;
}

static int resolve_users(struct config *c, struct config_tenant *t, struct config_report *report)
{
	const struct config_source *source = &t->source[CONFIG_TENANT_KEY_users];
	char at[300];

	free(t->uids);
	t->uids = calloc(MAX(t->users.count, 1), sizeof(*t->uids));
	if (!t->uids) {
		return err_origin(-ENOMEM);
	}
	for (size_t i = 0; i < t->users.count; i++) {
		const char *name = t->users.items[i];
		struct passwd *found;
		int64_t uid;

		if (!number(name, &uid)) {
			found = getpwnam(name);
			if (!found) {
				config_report_add(report,
						  "%s: users: there is no user '%s'; correct the "
						  "name, or give the number",
						  where(c, source, at, sizeof(at)), name);
			}
			uid = found ? found->pw_uid : (uid_t)-1;
		}
		t->uids[i] = (uid_t)uid;
	}
	return 0;
}

/* A user in two tenants would depend on the order of the file. */
static void check_tenants(struct config *c, struct config_report *report)
{
	char at[300];

	for (size_t i = 1; i < c->ntenants; i++) {
		struct config_tenant *t = &c->tenants[i];

		for (size_t k = 0; k < t->users.count; k++) {
			const struct config_tenant *first;

			first = t->uids[k] == (uid_t)-1 ? t : config_tenant_of(c, t->uids[k]);
			if (first != t) {
				config_report_add(
					report,
					"%s: users: %s is in tenant %s already; remove one of the "
					"two",
					where(c, &t->source[CONFIG_TENANT_KEY_users], at,
					      sizeof(at)),
					t->users.items[k], first->name);
			}
		}
	}
}

/* ---- network ------------------------------------------------------------------------------ */

/* Return: is it a numeric address? */
static bool address(const char *text, bool *ret_loopback)
{
	struct in6_addr six;
	struct in_addr four;

	if (inet_pton(AF_INET, text, &four) == 1) {
		*ret_loopback = ntohl(four.s_addr) >> 24 == 127;
		return true;
	}
	if (inet_pton(AF_INET6, text, &six) == 1) {
		*ret_loopback = IN6_IS_ADDR_LOOPBACK(&six);
		return true;
	}
	return false;
}

static void check_listen(struct config *c, struct config_report *report)
{
	const char *at = WHERE(c, listen);
	bool loopback;

	for (size_t i = 0; i < c->listen.count; i++) {
		const char *text = c->listen.items[i];

		if (!address(text, &loopback)) {
			config_report_add(report,
					  "%s: listen: '%s' is not a numeric IPv4 or IPv6 address "
					  "(such as 10.0.0.1 or fd00::1)",
					  at, text);
		} else if (!loopback && c->key_file[0] == '\0') {
			config_report_add(
				report,
				"%s: listen: %s is not loopback, and there is no key; make "
				"one (rocectl key new), the same for all hosts, and name it "
				"in key_file",
				at, text);
		}
	}
}

static void check_key_file(struct config *c, struct config_report *report)
{
	const char *at = WHERE(c, key_file);
	struct stat st;

	if (c->key_file[0] == '\0') {
		return;
	}
	if (c->key_file[0] != '/') {
		config_report_add(report, "%s: key_file: '%s' is not an absolute path", at,
				  c->key_file);
	} else if (stat(c->key_file, &st) < 0) {
		config_report_add(report, "%s: key_file: %s: %s; rocectl key new makes one", at,
				  c->key_file, strerror(errno));
	} else if (!S_ISREG(st.st_mode)) {
		config_report_add(report, "%s: key_file: %s is not a regular file", at,
				  c->key_file);
	} else if (st.st_mode & 077) {
		config_report_add(report,
				  "%s: key_file: %s has mode %04o: group or others have access; "
				  "chmod 0600 it, and make a new key if somebody may have read it",
				  at, c->key_file, st.st_mode & 07777);
	}
}

static void check_dependent(struct config *c, struct config_report *report)
{
	if (c->socket[0] != '/') {
		config_report_add(report, "%s: socket: '%s' is not an absolute path",
				  WHERE(c, socket), c->socket);
	}
	if (c->peer_timeout_ms < 2 * c->heartbeat_ms) {
		config_report_add(
			report,
			"%s: peer_timeout_ms: %u is less than twice heartbeat_ms (%u): one "
			"late heartbeat would be a dead daemon; raise it, or lower "
			"heartbeat_ms",
			WHERE(c, peer_timeout_ms), c->peer_timeout_ms, c->heartbeat_ms);
	}
	for (const char *s = c->congestion; *s != '\0'; s++) {
		if (!isalnum((unsigned char)*s) && *s != '_' && *s != '-') {
			config_report_add(
				report,
				"%s: congestion: '%s' is no name of a congestion control; "
				"sysctl net.ipv4.tcp_available_congestion_control lists "
				"them",
				WHERE(c, congestion), c->congestion);
			break;
		}
	}
}

/* ---- RDMA --------------------------------------------------------------------------------- */

/* All retries of a transfer, in milliseconds. */
static uint64_t retries_ms(const struct config *c)
{
	return (UINT64_C(4096) << c->ack_timeout) * (c->retry_count + 1) / 1000000;
}

/* The retries must be over before whoever watches them gives up. */
static void check_above_retries(const struct config *c, const char *at, const char *key,
				uint32_t ms, struct config_report *report)
{
	if (ms <= retries_ms(c)) {
		config_report_add(report,
				  "%s: %s: %u is not more than the %" PRIu64
				  " ms that ack_timeout (%u) and retry_count (%u) add up to; raise "
				  "it, or lower one of them",
				  at, key, ms, retries_ms(c), c->ack_timeout, c->retry_count);
	}
}

static void check_rdma(const struct config *c, struct config_report *report)
{
	if (c->mtu_cap & (c->mtu_cap - 1)) {
		config_report_add(report,
				  "%s: mtu_cap: %u is no RoCE MTU; allowed: 256, 512, 1024, 2048 "
				  "and 4096",
				  WHERE(c, mtu_cap), c->mtu_cap);
	}
	if (c->require == CONFIG_REQUIRE_RDMA && c->transport == CONFIG_TRANSPORT_TCP) {
		config_report_add(
			report,
			"%s: require: rdma cannot be had with transport = tcp; remove one "
			"of the two",
			WHERE(c, require));
	}
	if (c->transport == CONFIG_TRANSPORT_TCP) {
		return;
	}
	check_above_retries(c, WHERE(c, completion_timeout_ms), "completion_timeout_ms",
			    c->completion_timeout_ms, report);
	check_above_retries(c, WHERE(c, probe_timeout_ms), "probe_timeout_ms", c->probe_timeout_ms,
			    report);
}

/* See config.h. */
int config_resolve(struct config *c, struct config_report *report)
{
	int r;

	resolve_group(&c->socket_group, WHERE(c, socket_group), "socket_group", report);
	resolve_group(&c->admin_group, WHERE(c, admin_group), "admin_group", report);
	for (size_t i = 0; i < c->ntenants; i++) {
		r = resolve_users(c, &c->tenants[i], report);
		if (r < 0) {
			return err_trace(r);
		}
	}
	check_tenants(c, report);
	check_listen(c, report);
	check_key_file(c, report);
	check_dependent(c, report);
	check_rdma(c, report);
	return report->errors > 0 ? CONFIG_E_INVALID : 0;
}
