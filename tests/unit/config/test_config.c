/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of config/: defaults, errors, sources, tenants
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "config/config.h"

static struct config *parse(const char *text, struct config_report *report, int expected)
{
	struct config *c;

	cr_assert_eq(config_new(&c), 0);
	cr_assert_eq(config_parse(c, "f", text, strlen(text), report), expected, "%s: %s", text,
		     report->text ? report->text : "");
	return c;
}

/* The text has one error, whose line contains @expected. */
static void refuse(const char *text, const char *expected)
{
	struct config_report report = {0};
	struct config *c = parse(text, &report, CONFIG_E_INVALID);

	cr_assert_eq(report.errors, 1, "%s", report.text);
	cr_assert(strstr(report.text, expected), "%s not in %s", expected, report.text);
	config_report_deinit(&report);
	config_free(c);
}

Test(config, defaults_need_no_file)
{
	struct config_report report = {0};
	struct config *c;

	cr_assert_eq(config_new(&c), 0);
	cr_assert_eq(config_resolve(c, &report), 0, "%s", report.text);
	cr_assert_str_eq(c->socket, "/run/rocecomm/rocecomm.sock");
	cr_assert_eq(c->socket_mode, 0666);
	cr_assert_eq(c->log_level, LOG_LEVEL_INFO);
	cr_assert_eq(c->port, 4870);
	cr_assert_eq(c->progress_cpu, -1);
	cr_assert_eq(c->reduce_threads, VALUE_IS_AUTO);
	cr_assert_eq(c->admin_group.gid, -1);
	cr_assert_eq(c->tenants[0].max_bytes, 1ull << 40);
	cr_assert_eq(c->tenants[0].max_pinned, UINT64_MAX);
	cr_assert_eq(c->max_pinned, 0);
	cr_assert_eq(c->max_regions, VALUE_IS_AUTO);
	cr_assert_eq(config_tenant_of(c, 4711), &c->tenants[0]);
	config_free(c);
}

Test(config, values)
{
	struct config_report report = {0};
	struct config *c;

	c = parse("# comment\n[daemon]\r\nlog_level = debug # why\nsocket_mode=0660\n\n"
		  "progress_cpu = 3\nreduce_threads = 16\nadmin_group = 12\n[peer]\nlisten = "
		  "10.0.0.1, fd00::1 10.0.0.2\n"
		  "congestion =\n[tenant a b]\nusers = 0 1\nmax_bytes = 3g\nmax_comms=7\n[daemon]\n"
		  "idle_exit_s = 5\n[tenant c]\nmax_bytes = unlimited",
		  &report, 0);
	cr_assert_eq(c->log_level, LOG_LEVEL_DEBUG);
	cr_assert_eq(c->socket_mode, 0660);
	cr_assert_eq(c->progress_cpu, 3);
	cr_assert_eq(c->reduce_threads, 16);
	cr_assert_eq(c->listen.count, 3);
	cr_assert_str_eq(c->listen.items[1], "fd00::1");
	cr_assert_str_eq(c->congestion, "");
	cr_assert_eq(c->idle_exit_s, 5);
	cr_assert_eq(c->ntenants, 3);
	cr_assert_str_eq(c->tenants[1].name, "a b");
	cr_assert_eq(c->tenants[1].max_bytes, 3ull << 30);
	cr_assert_eq(c->tenants[1].max_comms, 7);
	cr_assert_eq(c->tenants[2].max_bytes, UINT64_MAX);
	c->listen.count = 0; /* it needs a key */
	cr_assert_eq(config_resolve(c, &report), 0, "%s", report.text);
	c->listen.count = 3;
	cr_assert_eq(c->admin_group.gid, 12);
	cr_assert_eq(config_tenant_of(c, 1), &c->tenants[1]);
	cr_assert_eq(config_tenant_of(c, 2), &c->tenants[0]);
	config_free(c);
}

Test(config, errors_name_line_value_allowed_and_mend)
{
	refuse("\n[peer]\nport = 99999\n",
	       "f:3: port: '99999' is out of range; allowed: a number, 0 to 65535");
	refuse("[peer]\nport = x", "f:2: port: 'x' is not a number");
	refuse("[peer]\nport = 1 2", "'1 2' is not a number");
	refuse("[peer]\nport =", "'' is not a number");
	refuse("[peer]\nport = -1", "out of range");
	refuse("[peer]\nport = 99999999999999999999", "is not a number");
	refuse("[peer]\nprot = 1", "f:2: there is no key 'prot'; did you mean port in [peer]?");
	refuse("[daemon]\nport = 1", "port does not belong in [daemon]; move it to [peer]");
	refuse("[daemon]\nmax_comms = 1", "move it to [tenant NAME]");
	refuse("[daemon]\nabrakadabra = 1", "rocecommd.conf(5)");
	refuse("port = 1", "f:1: port is in no section");
	refuse("[pear]\nport = 1\nx = y", "there is no section [pear]");
	refuse("[tenant]\nmax_comms = 1", "is written [tenant NAME]");
	refuse("[peer x]\nport = 1", "is written [peer]");
	refuse("[peer\nport = 1", "f:1: the section's ] is missing");
	refuse("[]", "empty or too long");
	refuse("[peer]\nport", "f:2: neither");
	refuse("[peer]\n= 1", "f:2: neither");
	refuse("[peer]\nport = 1\nport = 2", "f:3: port was set in line 2 already");
	refuse("[peer]\n\x01", "control character");
	refuse("[daemon]\nlog_level = loud", "allowed: error, warning, info or debug");
	refuse("[daemon]\nreduce_threads = 17",
	       "f:2: reduce_threads: '17' is out of range; allowed: auto, or a number, 0 to 16");
	refuse("[daemon]\nreduce_threads = -1", "'-1' is out of range");
	refuse("[daemon]\nreduce_threads = some", "'some' is not a number; allowed: auto, or");
	refuse("[daemon]\nsocket_mode = 0999", "in octal, 0000 to 0777");
	refuse("[daemon]\nsocket =", "'' is empty");
	refuse("[tenant default]\nusers = 1", "is everybody who is in no other tenant");
	refuse("[tenant x]\nmax_bytes = 9999999T", "out of range");
	refuse("[tenant x]\nmax_bytes = 1X", "is not a size");
	refuse("[tenant x]\nmax_bytes = K", "is not a size");
}

Test(config, rdma)
{
	struct config_report report = {0};
	struct config *c;

	c = parse("[peer]\ntransport = rdma\nrequire = rdma\n[rdma]\ndevices = mlx5_* !\n"
		  "devices_denied = ens1f0\nqps = 4\nmtu_cap = 1024\ntraffic_class = 106\n"
		  "ack_timeout = 18\nretry_count = 5\nmax_pinned = 2G\nmax_regions = auto\n",
		  &report, 0);
	cr_assert_eq(config_resolve(c, &report), 0, "%s", report.text);
	cr_assert_eq(c->transport, CONFIG_TRANSPORT_RDMA);
	cr_assert_eq(c->require, CONFIG_REQUIRE_RDMA);
	cr_assert_eq(c->devices.count, 2);
	cr_assert_str_eq(c->devices_denied.items[0], "ens1f0");
	cr_assert_eq(c->traffic_class, 106);
	cr_assert_eq(c->max_pinned, 2ull << 30);
	cr_assert_eq(c->max_regions, VALUE_IS_AUTO);
	config_free(c);
	refuse("[peer]\ntransport = roce\n",
	       "f:2: transport: 'roce' is none of its words; allowed: auto, rdma or tcp");
	refuse("[peer]\nrequire = tcp\n",
	       "f:2: require: 'tcp' is none of its words; allowed: rdma, "
	       "or nothing");
	refuse("[rdma]\nmax_pinned = 0\n",
	       "max_pinned: '0' is out of range; allowed: auto, a number of bytes");
	refuse("[rdma]\nmax_pinned = Auto\n", "'Auto' is not a size");
	/* 7 is for ever. */
	refuse("[rdma]\nretry_count = 7\n",
	       "retry_count: '7' is out of range; allowed: a number, 1 "
	       "to 6");
	refuse("[rdma]\nrnr_retry_count = 7\n", "out of range");
	refuse("[peer]\nqps = 2\n", "f:2: qps does not belong in [peer]; move it to [rdma]");
}

/* Values that are all right one by one. */
Test(config, rdma_values_that_do_not_go_together)
{
	static const struct {
		const char *text, *expected;
	} cases[] = {
		{"[peer]\ntransport = tcp\nrequire = rdma\n",
		 "f:3: require: rdma cannot be had with transport = tcp"},
		{"[rdma]\nmtu_cap = 1500\n",
		 "f:2: mtu_cap: 1500 is no RoCE MTU; allowed: 256, 512"},
		{"[rdma]\nack_timeout = 18\nprobe_timeout_ms = 100000\ncompletion_timeout_ms = "
		 "7500\n",
		 "f:4: completion_timeout_ms: 7500 is not more than the 7516 ms that ack_timeout "
		 "(18) "
		 "and retry_count (6) add up to"},
		{"[rdma]\nprobe_timeout_ms = 1000\n", "f:2: probe_timeout_ms: 1000 is not more"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct config_report report = {0};
		struct config *c = parse(cases[i].text, &report, 0);

		cr_assert_eq(config_resolve(c, &report), CONFIG_E_INVALID, "%s", cases[i].text);
		cr_assert_eq(report.errors, 1, "%s", report.text);
		cr_assert(strstr(report.text, cases[i].expected), "%s", report.text);
		config_report_deinit(&report);
		config_free(c);
	}
}

Test(config, zero_byte_and_long_line)
{
	struct config_report report = {0};
	struct config *c;
	char text[9000];

	memset(text, 'a', sizeof(text));
	text[3] = '\0';
	text[5] = '\n';
	cr_assert_eq(config_new(&c), 0);
	cr_assert_eq(config_parse(c, "f", text, sizeof(text), &report), CONFIG_E_INVALID);
	cr_assert_eq(report.errors, 2);
	cr_assert(strstr(report.text, "f:1: a zero byte"));
	cr_assert(strstr(report.text, "f:2: the line is longer"));
	config_report_deinit(&report);
	config_free(c);
}

Test(config, many_errors_are_counted)
{
	struct config_report report = {0};
	char text[2000] = "[peer]\n";
	struct config *c;

	for (int i = 0; i < 50; i++) {
		strcat(text, "bogus\n");
	}
	c = parse(text, &report, CONFIG_E_INVALID);
	cr_assert_eq(report.errors, 50);
	config_report_deinit(&report);
	config_free(c);
}

/* Parses and resolves; the report must contain @expected. */
static void unresolved(const char *text, const char *expected)
{
	struct config_report report = {0};
	struct config *c = parse(text, &report, 0);

	cr_assert_eq(config_resolve(c, &report), CONFIG_E_INVALID);
	cr_assert(strstr(report.text, expected), "%s not in %s", expected, report.text);
	config_report_deinit(&report);
	config_free(c);
}

Test(config, what_the_system_must_have)
{
	unresolved("[daemon]\nadmin_group = no-such-group", "f:2: admin_group: there is no group");
	unresolved("[tenant x]\nusers = no-such-user", "f:2: users: there is no user");
	unresolved("[tenant x]\nusers = root\n[tenant y]\nusers = 0",
		   "f:4: users: 0 is in tenant x");
	unresolved("[peer]\nlisten = host", "not a numeric");
	unresolved("[peer]\nlisten = 127.0.0.1, 10.0.0.1", "10.0.0.1 is not loopback");
	unresolved("[peer]\nkey_file = key", "not an absolute path");
	unresolved("[peer]\nkey_file = /no/such/key", "rocectl key new makes one");
	unresolved("[peer]\nkey_file = /dev/null", "not a regular file");
	unresolved("[peer]\nheartbeat_ms = 2000", "less than twice heartbeat_ms");
	unresolved("[peer]\ncongestion = ../x", "no name of a congestion control");
	unresolved("[daemon]\nsocket = x/y", "not an absolute path");
}

Test(config, key_file_mode)
{
	char path[] = "/tmp/test_config_XXXXXX", text[100];
	int fd = mkstemp(path);
	struct config_report report = {0};
	struct config *c;

	cr_assert_geq(fd, 0);
	fchmod(fd, 0640);
	snprintf(text, sizeof(text), "[peer]\nkey_file = %s", path);
	unresolved(text, "has mode 0640: group or others have access; chmod 0600");
	fchmod(fd, 0400);
	c = parse(text, &report, 0);
	cr_assert_eq(config_resolve(c, &report), 0);
	config_free(c);
	close(fd);
	unlink(path);
}

Test(config, read_file)
{
	struct config_report report = {0};
	struct config *c;

	cr_assert_eq(config_new(&c), 0);
	cr_assert_eq(config_read(c, "/no/such/file", &report), -ENOENT);
	cr_assert_eq(config_read(c, "/tmp", &report), CONFIG_E_INVALID);
	cr_assert(strstr(report.text, "not a regular file"));
	config_report_deinit(&report);
	config_free(c);
}

Test(config, items_tell_value_and_source)
{
	struct config_report report = {0};
	struct config_item item;
	struct config *c;
	size_t n = 0, seen = 0;

	c = parse("[peer]\nport = 5\nlisten = ::1 127.0.0.1\n[tenant x]\nmax_bytes = 2048", &report,
		  0);
	cr_assert_eq(config_set(c, CONFIG_KEY_socket, "/x/y", "command line", &report), 0);
	cr_assert_eq(config_set(c, CONFIG_KEY_port, "z", "command line", &report),
		     CONFIG_E_INVALID);
	cr_assert_str_eq(report.text, "command line: port: 'z' is not a number; allowed: a number, "
				      "0 to 65535\n");
	for (; config_item(c, n, &item) == 0; n++) {
		if (strcmp(item.name, "peer.port") == 0) {
			cr_assert_str_eq(item.value, "5");
			cr_assert_str_eq(item.source, "f:2");
			seen++;
		} else if (strcmp(item.name, "peer.listen") == 0) {
			cr_assert_str_eq(item.value, "::1, 127.0.0.1");
			seen++;
		} else if (strcmp(item.name, "daemon.socket") == 0) {
			cr_assert_str_eq(item.value, "/x/y");
			cr_assert_str_eq(item.source, "command line");
			seen++;
		} else if (strcmp(item.name, "tenant x.max_bytes") == 0) {
			cr_assert_str_eq(item.value, "2K");
			cr_assert_str_eq(item.source, "f:5");
			seen++;
		} else if (strcmp(item.name, "tenant default.max_comms") == 0) {
			cr_assert_str_eq(item.source, "default");
			seen++;
		}
		free(item.value);
	}
	cr_assert_eq(n, CONFIG_NKEYS + 2 * CONFIG_NTENANT_KEYS);
	cr_assert_eq(seen, 5);
	config_report_deinit(&report);
	config_free(c);
}
