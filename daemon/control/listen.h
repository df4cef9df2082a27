/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Listen: the daemon's Unix socket, made by us or by systemd
 *
 * A lock on PATH.lock decides who lives, never whether somebody answers: a daemon that is stopped
 * or slow is alive, and the socket of a dead one is replaced. Whatever else lies at the path is not
 * touched. Mode and group are as configured, whatever the umask.
 *
 * Thread: control      Owns: descriptors, the files PATH and PATH.lock      Locks: none
 */
#ifndef ROCECOMM_CONTROL_LISTEN_H
#define ROCECOMM_CONTROL_LISTEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	LISTEN_E_BUSY = 1,    /* another daemon serves this path; err names its pid */
	LISTEN_E_REFUSED = 2, /* err says why */
};

#define LISTEN_PATH_SIZE 108 /* sizeof(sun_path) */

struct listen_options {
	const char *path;
	uint32_t mode;
	int64_t gid;	  /* -1: as it comes */
	bool private_dir; /* the directory is made 0700, and must be ours alone (--user) */
};

struct listen_socket {
	int fd;	     /* listening, non-blocking, close-on-exec */
	int lock_fd; /* -1: none (systemd's socket in a directory that is not ours) */
	bool activated;
	dev_t dev; /* of the socket's file that we made, so that only it is removed */
	ino_t ino; /* 0: we made none */
	char path[LISTEN_PATH_SIZE]; /* "": an abstract socket of systemd's */
};

/*
 * Takes systemd's socket if there is one (LISTEN_FDS), else makes one.
 * @err: the sentence for a positive return. Return: 0, LISTEN_E_BUSY, LISTEN_E_REFUSED.
 */
int listen_open(const struct listen_options *options, struct listen_socket *ret, char *err,
		size_t err_size);
/* Closes, and removes the files unless they are systemd's. Harmless when it never opened: fd -1. */
void listen_close(struct listen_socket *l);

/*
 * Where `rocecommd --user` listens, as libroceclient looks for it: $XDG_RUNTIME_DIR, else
 * /run/user/UID, else /tmp/rocecomm-UID (made), each with /rocecomm/rocecomm.sock.
 * Return: 0, LISTEN_E_REFUSED with a sentence.
 */
int listen_user_path(char *buf, size_t size, char *err, size_t err_size);

#endif
