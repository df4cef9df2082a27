/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * rocectl key: make the secret that the daemons of a cluster share
 *
 * 32 random bytes in hexadecimal. The file is new and its owner's alone from the first moment; an
 * existing one is never touched, as every daemon that still uses it would be locked out.
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "proto/base.h"
#include "tools/rocectl/rocectl.h"

#define KEY_BYTES 32
#define KEY_FILE "/etc/rocecomm/cluster.key"

static int key_write(int fd, const char *text, size_t size)
{
	while (size > 0) {
		ssize_t n = write(fd, text, size);

		if (n < 0 && errno != EINTR) {
			return -errno;
		}
		if (n > 0) {
			text += n;
			size -= (size_t)n;
		}
	}
	return fsync(fd) < 0 ? -errno : 0;
}

static int key_text(char *text)
{
	unsigned char bytes[KEY_BYTES];

	if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes)) {
		return -errno;
	}
	for (size_t i = 0; i < sizeof(bytes); i++) {
		sprintf(text + 2 * i, "%02x", bytes[i]);
	}
	text[2 * KEY_BYTES] = '\n';
	explicit_bzero(bytes, sizeof(bytes));
	return 0;
}

static int key_new(const char *path)
{
	char text[2 * KEY_BYTES + 2];
	cleanup_close int fd = -1;
	int r;

	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0 && errno == EEXIST) {
		fprintf(stderr,
			"rocectl: %s exists and stays as it is; name another file, or remove it "
			"first if no daemon uses it any more\n",
			path);
		return ROCECTL_FAILED;
	}
	if (fd < 0) {
		fprintf(stderr, "rocectl: cannot make %s: %s\n", path, strerror(errno));
		return ROCECTL_FAILED;
	}
	r = fchmod(fd, 0600) < 0 ? -errno : key_text(text);
	if (r == 0) {
		r = key_write(fd, text, 2 * KEY_BYTES + 1);
	}
	explicit_bzero(text, sizeof(text));
	if (r < 0) {
		fprintf(stderr, "rocectl: cannot write %s: %s\n", path, strerror(-r));
		unlink(path);
		return ROCECTL_FAILED;
	}
	printf("%s: new cluster key. Copy it to every host (mode 0600, owned by the user that the "
	       "daemon runs as: chown rocecomm), name it in key_file and restart the daemons.\n",
	       path);
	return ROCECTL_OK;
}

int cmd_key(const struct rocectl *ctl, int argc, char **argv)
{
	if (argc < 2 || argc > 3 || strcmp(argv[1], "new") != 0) {
		fprintf(stderr, "usage: rocectl key new [FILE]   (default: %s)\n", KEY_FILE);
		return ROCECTL_USAGE;
	}
	return key_new(argc == 3 ? argv[2] : KEY_FILE);
}
