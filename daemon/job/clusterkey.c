/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Cluster key: reading and checking the file
 *
 * Thread: any      Owns: nothing      Locks: none      See: PROTOCOL.md §7
 */
#include "job/clusterkey.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base.h"

#define KEY_HEX (2 * CLUSTERKEY_SIZE)

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9') {
		return c - '0';
	}
	if (c >= 'a' && c <= 'f') {
		return c - 'a' + 10;
	}
	if (c >= 'A' && c <= 'F') {
		return c - 'A' + 10;
	}
	return -1;
}

/* The one line: KEY_HEX digits, at most white space behind them. */
static int key_parse(const char *text, size_t size, uint8_t *ret_key)
{
	if (size < KEY_HEX) {
		return -EINVAL;
	}
	for (size_t i = KEY_HEX; i < size; i++) {
		if (!strchr(" \t\r\n", text[i]) || text[i] == '\0') {
			return -EINVAL;
		}
	}
	for (size_t i = 0; i < CLUSTERKEY_SIZE; i++) {
		int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);

		if (high < 0 || low < 0) {
			return -EINVAL;
		}
		ret_key[i] = (uint8_t)(high << 4 | low);
	}
	return 0;
}

/* Nobody but the owner, who is this user or root, may have read it. */
static int key_check_file(int fd, const char *path, char *err, size_t err_size)
{
	struct stat st;

	if (fstat(fd, &st) < 0) {
		int r = -errno;

		snprintf(err, err_size, "cluster key %s cannot be examined: %s", path,
			 strerror(-r));
		return r;
	}
	if (!S_ISREG(st.st_mode)) {
		snprintf(err, err_size, "cluster key %s is not a regular file", path);
		return -EINVAL;
	}
	if (st.st_uid != geteuid() && st.st_uid != 0) {
		snprintf(err, err_size,
			 "cluster key %s belongs to user %u, not to this daemon's user %u or root: "
			 "chown %u %s",
			 path, (unsigned int)st.st_uid, (unsigned int)geteuid(),
			 (unsigned int)geteuid(), path);
		return -EACCES;
	}
	if (st.st_mode & (S_IRWXG | S_IRWXO)) {
		snprintf(err, err_size,
			 "cluster key %s has mode %04o, so others than its owner may have read it: "
			 "chmod 600 %s (and make a new one with `rocectl key new` if they could)",
			 path, (unsigned int)(st.st_mode & 07777), path);
		return -EACCES;
	}
	return 0;
}

/* See clusterkey.h. */
int clusterkey_load(const char *path, uint8_t *ret_key, char *err, size_t err_size)
{
	cleanup_close int fd = -1;
	char text[KEY_HEX + 16];
	ssize_t n;
	int r;

	/* O_NONBLOCK: a FIFO by that name must not stop the daemon. */
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (fd < 0) {
		r = -errno;
		snprintf(err, err_size,
			 "cluster key %s cannot be read: %s (make one with `rocectl key new` and "
			 "copy it to all hosts)",
			 path, strerror(-r));
		return r;
	}
	r = key_check_file(fd, path, err, err_size);
	if (r < 0) {
		return r;
	}
	n = read(fd, text, sizeof(text));
	if (n < 0) {
		r = -errno;
		snprintf(err, err_size, "cluster key %s cannot be read: %s", path, strerror(-r));
		return r;
	}
	r = key_parse(text, (size_t)n, ret_key);
	OPENSSL_cleanse(text, sizeof(text));
	if (r < 0) {
		OPENSSL_cleanse(ret_key, CLUSTERKEY_SIZE);
		snprintf(err, err_size,
			 "cluster key %s is not one line of %d hexadecimal digits: make a new one "
			 "with `rocectl key new`",
			 path, KEY_HEX);
	}
	return r;
}
