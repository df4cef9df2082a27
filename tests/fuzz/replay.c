/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Replay: runs a fuzz target once over every file of a corpus, with any compiler
 *
 * Linked with a target in place of libFuzzer. A target that fails aborts, and the file it failed
 * on is the last one named.
 *
 * Thread: one      Owns: the file's bytes      Locks: none
 */
#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/base.h"
#include "tests/fuzz/fuzz.h"

/* Reads a regular file into one block of its exact size. Return: 0 or negative errno. */
static int read_file(const char *path, uint8_t **ret, size_t *ret_size)
{
	cleanup_free uint8_t *data = NULL;
	struct stat st;
	FILE *file;
	size_t n;

	file = fopen(path, "rb");
	if (!file) {
		return -errno;
	}
	if (fstat(fileno(file), &st) < 0 || !S_ISREG(st.st_mode)) {
		fclose(file);
		return -EINVAL;
	}
	data = malloc(st.st_size > 0 ? (size_t)st.st_size : 1);
	n = data ? fread(data, 1, (size_t)st.st_size, file) : 0;
	fclose(file);
	if (!data || n != (size_t)st.st_size) {
		return data ? -EIO : -ENOMEM;
	}
	*ret = take_ptr(data);
	*ret_size = n;
	return 0;
}

static int replay_file(const char *dir, const char *name)
{
	cleanup_free uint8_t *data = NULL;
	char path[4096];
	size_t size = 0;
	int r;

	if (snprintf(path, sizeof(path), "%s/%s", dir, name) >= (int)sizeof(path)) {
		return -ENAMETOOLONG;
	}
	printf("%s\n", path);
	fflush(stdout);
	r = read_file(path, &data, &size);
	if (r < 0) {
		fprintf(stderr, "%s: %s\n", path, strerror(-r));
		return r;
	}
	LLVMFuzzerTestOneInput(data, size);
	return 0;
}

int main(int argc, char **argv)
{
	struct dirent **names;
	int n, failed = 0, count = 0;

	if (argc != 2) {
		fprintf(stderr, "usage: %s CORPUS-DIRECTORY\n", argv[0]);
		return 2;
	}
	n = scandir(argv[1], &names, NULL, alphasort);
	if (n < 0) {
		fprintf(stderr, "%s: %s\n", argv[1], strerror(errno));
		return 1;
	}
	for (int i = 0; i < n; i++) {
		if (names[i]->d_name[0] != '.') {
			failed += replay_file(argv[1], names[i]->d_name) < 0;
			count++;
		}
		free(names[i]);
	}
	free(names);
	if (count == 0) {
		fprintf(stderr, "%s: no files to replay\n", argv[1]);
		return 1;
	}
	return failed ? 1 : 0;
}
