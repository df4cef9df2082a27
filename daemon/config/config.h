/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Config: the configuration file as checked values
 *
 * INI-like: sections [daemon], [peer], [rdma] and [tenant NAME], lines `key = value`. No file is
 * needed: every key has a default, and [tenant default] always exists. Everything that can be wrong
 * is found at once and told as "file:line: what, what is allowed, the mend" (struct config_report).
 * Parsing is pure; config_resolve() then asks the system for users, groups and the key file, so
 * that nobody needs to later.
 *
 * The rows of config_keys.def drive all of it. A reload changes values in place (reload.h): keep
 * the pointer to the struct, never one to a text or list inside.
 *
 * Thread: control      Owns: its texts and lists      Locks: none
 */
#ifndef ROCECOMM_CONFIG_H
#define ROCECOMM_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "config/value.h"
#include "util/log.h"

#define CONFIG_SYSTEM_FILE "/etc/rocecomm/rocecommd.conf"
#define CONFIG_MAX_FILE (1u << 20)
#define CONFIG_MAX_TENANTS 1024
#define CONFIG_MAX_ERRORS 20 /* told in one report */
#define CONFIG_DEFAULT_TENANT "default"

enum {
	CONFIG_E_INVALID = 1, /* the report says what is wrong */
};

enum config_index {
#define CONFIG_KEY(section, name, ...) CONFIG_KEY_##name,
#define CONFIG_TENANT_KEY(...)
#include "config/config_keys.def"
#undef CONFIG_KEY
#undef CONFIG_TENANT_KEY
	CONFIG_NKEYS
};

enum config_tenant_index {
#define CONFIG_KEY(...)
#define CONFIG_TENANT_KEY(name, ...) CONFIG_TENANT_KEY_##name,
#include "config/config_keys.def"
#undef CONFIG_KEY
#undef CONFIG_TENANT_KEY
	CONFIG_NTENANT_KEYS
};

/* Where a value is from. */
struct config_source {
	const char *origin; /* static, such as "command line"; NULL: the file or the default */
	unsigned int line;  /* in the file; 0: the default */
};

struct config_tenant {
	char *name;
	struct value_list users;
	uint64_t max_bytes;  /* UINT64_MAX: unlimited */
	uint64_t max_pinned; /* likewise */
	uint32_t max_buffers;
	uint32_t max_comms;
	uint32_t max_sessions;

	uid_t *uids; /* [users.count], by config_resolve() */
	struct config_source source[CONFIG_NTENANT_KEYS];
};

struct config {
	/* [daemon] */
	char *socket;
	uint32_t socket_mode;
	struct value_group socket_group;
	struct value_group admin_group;
	enum log_level log_level;
	int32_t progress_spin_us; /* VALUE_IS_AUTO */
	int32_t progress_cpu;
	int32_t reduce_threads; /* VALUE_IS_AUTO */
	int32_t io_threads;	/* VALUE_IS_AUTO */
	enum config_gpu gpu;
	uint64_t gpu_staging; /* bytes a GPU */
	enum config_gpu gpu_peer;
	uint32_t join_timeout_ms;
	uint32_t arrival_timeout_ms;
	uint32_t transfer_timeout_ms;
	uint32_t idle_exit_s;

	/* [peer] */
	struct value_list listen;
	uint32_t port;
	enum config_transport transport;
	enum config_require require;
	struct value_list interfaces;
	char *key_file;
	char *congestion;
	int32_t streams; /* VALUE_IS_AUTO */
	uint32_t chunk_kib;
	uint32_t eager_kib;
	uint32_t eager_credits;
	char *algorithms; /* text of coll_tuning_parse() */
	uint32_t heartbeat_ms;
	uint32_t peer_timeout_ms;
	uint32_t connect_timeout_ms;

	/* [rdma]; as struct verbs_options has them, where it does */
	struct value_list devices, devices_denied;
	uint32_t qps;
	uint32_t mtu_cap; /* bytes */
	uint32_t traffic_class;
	uint32_t service_level;
	uint32_t hop_limit;
	uint32_t ack_timeout;
	uint32_t retry_count;
	uint32_t rnr_retry_count;
	uint32_t completion_timeout_ms;
	uint32_t probe_timeout_ms;
	uint32_t recover_timeout_ms;
	uint32_t reopen_ms;
	uint64_t max_pinned; /* bytes a device; 0: auto */
	int32_t max_regions; /* VALUE_IS_AUTO */

	/* [tenant NAME]; [0] is "default" */
	struct config_tenant *tenants;
	size_t ntenants;

	char *file; /* as named, for sources; NULL: none was read */
	struct config_source source[CONFIG_NKEYS];
};

/* Errors as lines of text. */
struct config_report {
	char *text; /* lines, each with a newline; NULL: none */
	size_t length;
	unsigned int errors;
};

void config_report_deinit(struct config_report *report);
/* Adds a line; those beyond CONFIG_MAX_ERRORS are only counted. */
void config_report_add(struct config_report *report, const char *fmt, ...) attr_printf(2, 3);

/* All defaults. Return: 0, -ENOMEM. */
int config_new(struct config **ret);
struct config *config_free(struct config *c);

/*
 * Reads @text over the defaults in @c, which is fresh. @name: of the file, for messages.
 * Return: 0, CONFIG_E_INVALID (report), -ENOMEM.
 */
int config_parse(struct config *c, const char *name, const char *text, size_t size,
		 struct config_report *report);
/* The same from a file. -ENOENT when there is none; other errors to read are in the report. */
int config_read(struct config *c, const char *path, struct config_report *report);
/*
 * Sets a key of [daemon], [peer] or [rdma] from elsewhere than the file.
 * @origin: static, such as "command line". Return: as config_parse().
 */
int config_set(struct config *c, enum config_index key, const char *text, const char *origin,
	       struct config_report *report);
/* Users, groups, key file, and keys that depend on each other. Return: as config_parse(). */
int config_resolve(struct config *c, struct config_report *report);

/* The tenant of a user; never NULL after config_new(). Stable until the next reload. */
const struct config_tenant *config_tenant_of(const struct config *c, uid_t uid);

/* ---- the table ---------------------------------------------------------------------------- */

extern const struct config_key config_keys[CONFIG_NKEYS];
extern const struct config_key config_tenant_keys[CONFIG_NTENANT_KEYS];

/* One line of `rocectl config`. */
struct config_item {
	char name[160];	  /* "daemon.socket", "tenant default.max_comms" */
	char *value;	  /* to be freed */
	char source[256]; /* "default", "file:line", "command line" */
	const struct config_key *key;
};
/*
 * The @index-th value, from 0. Return: 0, CONFIG_E_INVALID: no more, -ENOMEM. item->value is the
 * caller's to free.
 */
int config_item(const struct config *c, size_t index, struct config_item *ret);

#endif
