/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Value: typed values of configuration keys, from and to text
 *
 * Thread: any      Owns: texts and lists in values      Locks: none
 */
#ifndef ROCECOMM_CONFIG_VALUE_H
#define ROCECOMM_CONFIG_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum value_type {
	VALUE_TEXT,	 /* char *, never NULL */
	VALUE_LIST,	 /* struct value_list */
	VALUE_GROUP,	 /* struct value_group */
	VALUE_U32,	 /* uint32_t */
	VALUE_I32,	 /* int32_t */
	VALUE_AUTO,	 /* int32_t, VALUE_IS_AUTO: as suits the machine */
	VALUE_SIZE,	 /* uint64_t, UINT64_MAX: unlimited */
	VALUE_AUTO_SIZE, /* the same, 0: auto */
	VALUE_MODE,	 /* uint32_t */
	VALUE_LEVEL,	 /* enum log_level */
	VALUE_TRANSPORT, /* enum config_transport */
	VALUE_REQUIRE,	 /* enum config_require */
	VALUE_GPU,	 /* enum config_gpu */
	VALUE_COUNT_
};

enum {
	VALUE_E_INVALID = 1, /* err says why and what is allowed */
};

#define VALUE_IS_AUTO (-1)

/* What may carry data to other hosts. */
enum config_transport {
	CONFIG_TRANSPORT_AUTO,
	CONFIG_TRANSPORT_RDMA,
	CONFIG_TRANSPORT_TCP,
};

/* What a communicator cannot do without. */
enum config_require {
	CONFIG_REQUIRE_NOTHING,
	CONFIG_REQUIRE_RDMA,
};

/* Is memory of GPUs taken? */
enum config_gpu {
	CONFIG_GPU_AUTO,
	CONFIG_GPU_OFF,
};

struct value_list {
	char **items;
	size_t count;
};

struct value_group {
	char *name;  /* "": none */
	int64_t gid; /* -1: none, or not resolved yet */
};

/* A row of config_keys.def. */
struct config_key {
	const char *section;
	const char *name;
	enum value_type type;
	size_t offset;	      /* of the value in its struct */
	const char *fallback; /* the default, as text */
	int64_t min, max;
	bool runtime;
	const char *help;
};

/*
 * @dest: a valid value, replaced on success. Return: 0, VALUE_E_INVALID (@err is a part of a
 * sentence: "'x' is not a number; 1 to 16 are allowed"), -ENOMEM.
 */
int value_parse(const struct config_key *key, const char *text, void *dest, char *err, size_t size);
/* Text that value_parse() would read back. NULL: no memory. To be freed. */
char *value_format(const struct config_key *key, const void *value);
bool value_equal(const struct config_key *key, const void *a, const void *b);
void value_swap(const struct config_key *key, void *a, void *b);
void value_free(const struct config_key *key, void *value);
/* What is allowed, in words. */
void value_allowed(const struct config_key *key, char *buf, size_t size);

#endif
