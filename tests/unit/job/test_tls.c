/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of tls, clusterkey, datahello and address: what a link is made of, without a network
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "job/address.h"
#include "job/clusterkey.h"
#include "job/datahello.h"
#include "job/tls.h"
#include "proto/base.h"

/* Two ends, wired to each other. */
struct pair {
	struct tls_context *ctx[2];
	struct tls *end[2];
	int result[2]; /* of the last tls_read() */
	uint8_t got[2][65536];
	size_t have[2];
};

static void pair_init(struct pair *p, uint8_t client_key, uint8_t server_key)
{
	uint8_t key[TLS_KEY_SIZE];

	memset(p, 0, sizeof(*p));
	memset(key, client_key, sizeof(key));
	cr_assert_eq(tls_context_new(key, &p->ctx[0]), 0);
	memset(key, server_key, sizeof(key));
	cr_assert_eq(tls_context_new(key, &p->ctx[1]), 0);
	cr_assert_eq(tls_new(p->ctx[0], false, &p->end[0]), 0);
	cr_assert_eq(tls_new(p->ctx[1], true, &p->end[1]), 0);
}

static void pair_deinit(struct pair *p)
{
	for (int i = 0; i < 2; i++) {
		tls_free(p->end[i]);
		tls_context_free(p->ctx[i]);
	}
}

/* Carries bytes both ways, @step at a time, until nothing moves. */
static void pair_run(struct pair *p, size_t step)
{
	bool moved = true;

	while (moved) {
		moved = false;
		for (int i = 0; i < 2; i++) {
			uint8_t buf[4096];
			size_t n;

			while (p->result[i] == 0 || p->result[i] == TLS_E_MORE) {
				p->result[i] = tls_read(p->end[i], p->got[i] + p->have[i],
							sizeof(p->got[i]) - p->have[i], &n);
				if (p->result[i] != 0) {
					break;
				}
				p->have[i] += n;
			}
			n = tls_output(p->end[i], buf, MIN(step, sizeof(buf)));
			if (n > 0) {
				cr_assert_eq(tls_input(p->end[!i], buf, n), 0);
				moved = true;
			}
		}
	}
}

Test(tls, same_key)
{
	static const size_t steps[] = {1, 7, 4096};
	char big[20000];

	for (size_t i = 0; i < sizeof(big); i++) {
		big[i] = (char)(i * 31);
	}
	for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
		struct pair p;

		pair_init(&p, 1, 1);
		pair_run(&p, steps[i]);
		cr_assert(tls_is_ready(p.end[0]) && tls_is_ready(p.end[1]));
		cr_assert_eq(tls_write(p.end[0], big, sizeof(big)), 0);
		cr_assert_eq(tls_write(p.end[1], "pong", 4), 0);
		pair_run(&p, steps[i]);
		cr_assert_eq(p.have[1], sizeof(big));
		cr_assert_arr_eq(p.got[1], big, sizeof(big));
		cr_assert_eq(p.have[0], 4);
		tls_shutdown(p.end[0]);
		pair_run(&p, steps[i]);
		cr_assert_eq(p.result[1], TLS_E_CLOSED);
		pair_deinit(&p);
	}
}

Test(tls, other_key)
{
	struct pair p;

	pair_init(&p, 1, 2);
	pair_run(&p, 4096);
	cr_assert_eq(p.result[0], TLS_E_KEY, "client: %d %s", p.result[0], tls_error(p.end[0]));
	cr_assert_eq(p.result[1], TLS_E_KEY, "server: %d %s", p.result[1], tls_error(p.end[1]));
	cr_assert(!tls_is_ready(p.end[0]) && !tls_is_ready(p.end[1]));
	pair_deinit(&p);
}

Test(tls, garbage)
{
	static const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
	uint8_t record[64] = {TLS_FIRST_BYTE, 3, 1, 0, 59, 1};
	struct pair p;

	for (int i = 0; i < 2; i++) {
		pair_init(&p, 1, 1);
		cr_assert_eq(tls_input(p.end[1], i ? (void *)record : (void *)http,
				       i ? sizeof(record) : sizeof(http)),
			     0);
		pair_run(&p, 4096);
		cr_assert_eq(p.result[1], TLS_E_FAILED);
		cr_assert_neq(tls_error(p.end[1])[0], '\0');
		pair_deinit(&p);
	}
}

Test(tls, damaged_record)
{
	struct pair p;
	uint8_t buf[256];
	size_t n;

	pair_init(&p, 1, 1);
	pair_run(&p, 4096);
	cr_assert_eq(tls_write(p.end[0], "hello", 5), 0);
	n = tls_output(p.end[0], buf, sizeof(buf));
	buf[n - 1] ^= 1;
	cr_assert_eq(tls_input(p.end[1], buf, n), 0);
	pair_run(&p, 4096);
	cr_assert_eq(p.result[1], TLS_E_FAILED);
	cr_assert_eq(p.have[1], 0);
	pair_deinit(&p);
}

/* Writes a key file and loads it. Return: what clusterkey_load() said. */
static int load(const char *text, mode_t mode, uint8_t *key, char *err, size_t size)
{
	char path[] = "/tmp/rocecomm-key-XXXXXX";
	int fd = mkstemp(path), r;

	cr_assert_geq(fd, 0);
	cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	cr_assert_eq(fchmod(fd, mode), 0);
	close(fd);
	r = clusterkey_load(path, key, err, size);
	unlink(path);
	return r;
}

#define KEY "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F"

Test(clusterkey, good)
{
	uint8_t key[CLUSTERKEY_SIZE];
	char err[512];

	cr_assert_eq(load(KEY "\n", 0600, key, err, sizeof(err)), 0);
	for (unsigned int i = 0; i < sizeof(key); i++) {
		cr_assert_eq(key[i], i);
	}
	cr_assert_eq(load(KEY, 0400, key, err, sizeof(err)), 0);
}

Test(clusterkey, refused)
{
	uint8_t key[CLUSTERKEY_SIZE];
	char err[512];

	cr_assert_eq(load(KEY "\n", 0640, key, err, sizeof(err)), -EACCES);
	cr_assert(strstr(err, "chmod 600") && strstr(err, "0640"), "%s", err);
	cr_assert_eq(load(KEY "\n", 0604, key, err, sizeof(err)), -EACCES);
	cr_assert_eq(load("", 0600, key, err, sizeof(err)), -EINVAL);
	cr_assert_eq(load("0011\n", 0600, key, err, sizeof(err)), -EINVAL);
	cr_assert_eq(load(KEY "00\n", 0600, key, err, sizeof(err)), -EINVAL);
	cr_assert_eq(load("g" KEY "\n", 0600, key, err, sizeof(err)), -EINVAL);
	cr_assert(strstr(err, "rocectl key new"), "%s", err);
	cr_assert_eq(clusterkey_load("/nonexistent/key", key, err, sizeof(err)), -ENOENT);
	cr_assert(strstr(err, "/nonexistent/key"), "%s", err);
	cr_assert_eq(clusterkey_load("/tmp", key, err, sizeof(err)), -EINVAL);
}

Test(clusterkey, owner)
{
	char path[] = "/tmp/rocecomm-key-XXXXXX";
	uint8_t key[CLUSTERKEY_SIZE];
	char err[512];
	int fd;

	if (geteuid() != 0) {
		return; /* only root can give files away */
	}
	fd = mkstemp(path);
	cr_assert_eq(write(fd, KEY, strlen(KEY)), (ssize_t)strlen(KEY));
	cr_assert_eq(fchown(fd, 12345, 0), 0);
	cr_assert_eq(clusterkey_load(path, key, err, sizeof(err)), -EACCES);
	cr_assert(strstr(err, "12345") && strstr(err, "chown"), "%s", err);
	close(fd);
	unlink(path);
}

Test(datahello, round_trip)
{
	struct data_hello in = {.index = 0x0102}, out;
	uint8_t buf[DATA_HELLO_SIZE];

	memset(in.host_id, 0xaa, sizeof(in.host_id));
	memset(in.token, 0x55, sizeof(in.token));
	data_hello_encode(buf, &in);
	cr_assert_eq(memcmp(buf, "ROCEDATA\x01\x00\x02\x01\x00\x00\x00\x00\xaa", 17), 0);
	cr_assert_eq(buf[DATA_HELLO_SIZE - 1], 0x55);
	cr_assert_eq(data_hello_decode(buf, &out), 0);
	cr_assert_eq(out.index, in.index);
	cr_assert_arr_eq(out.host_id, in.host_id, sizeof(in.host_id));
	cr_assert(data_hello_token_equal(out.token, in.token));
	out.token[31] ^= 1;
	cr_assert(!data_hello_token_equal(out.token, in.token));
	for (unsigned int i = 0; i < 16; i++) {
		if (i == 10 || i == 11) { /* the index may be any */
			continue;
		}
		buf[i] ^= 0x80;
		cr_assert_eq(data_hello_decode(buf, &out), DATA_HELLO_E_INVALID);
		buf[i] ^= 0x80;
	}
}

static void parse_format(const char *text, const char *expect)
{
	struct sockaddr_storage a;
	char buf[ADDRESS_TEXT];

	cr_assert_eq(address_parse(text, 7470, &a), 0, "%s", text);
	address_format(&a, true, buf, sizeof(buf));
	cr_assert_str_eq(buf, expect);
}

#define LONG "1234567890123456789012345678901234567890123456789012345678901234567890"

Test(address, text)
{
	static const char *const bad[] = {"",		"localhost",  "10.0.0",	  "10.0.0.1:80",
					  "fd00::1::2", "10.1",	      "[fd00::1", "0x7f.1",
					  "::1%none0",	"fe80::1%\"", LONG};
	struct sockaddr_storage a;

	parse_format("10.1.0.2", "10.1.0.2:7470");
	parse_format("fd00::1", "[fd00::1]:7470");
	parse_format("[fd00:0::1]", "[fd00::1]:7470");
	parse_format("::ffff:10.1.0.2", "10.1.0.2:7470");
	parse_format("fe80::1%lo", "[fe80::1%lo]:7470");
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		cr_assert_eq(address_parse(bad[i], 1, &a), -EINVAL, "%s", bad[i]);
	}
}

Test(address, kinds)
{
	struct sockaddr_storage a, b;
	char interface[64];

	cr_assert_eq(address_parse("127.9.9.9", 1, &a), 0);
	cr_assert(address_is_loopback(&a));
	cr_assert_eq(address_parse("::1", 1, &a), 0);
	cr_assert(address_is_loopback(&a));
	cr_assert_eq(address_parse("126.0.0.1", 1, &a), 0);
	cr_assert(!address_is_loopback(&a));
	cr_assert_eq(address_parse("::ffff:127.0.0.1", 1, &a), 0);
	cr_assert(address_is_loopback(&a));
	cr_assert_eq(address_parse("127.0.0.1", 2, &b), 0);
	cr_assert(address_equal(&a, &b));
	address_set_port(&b, 77);
	cr_assert_eq(address_port(&b), 77);
	cr_assert(address_interface(&b, interface, sizeof(interface)));
	cr_assert_str_eq(interface, "lo");
	cr_assert_eq(address_parse("192.0.2.77", 2, &b), 0);
	cr_assert(!address_interface(&b, interface, sizeof(interface)));
	cr_assert(!address_equal(&a, &b));
}
