/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of what rocectl links and rocectl paths are told: devices, verdicts, counters of drivers
 *
 * Thread: one      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "control/links_json.h"
#include "proto/base.h"
#include "tests/fake/verbs/fake_verbs.h"

/* Files of sysfs, over those that the fake has. */
static const struct file {
	const char *path, *text;
} * files;
static const struct verbs_api *below;

static int read_file(void *arg, const char *path, char *buf, size_t size)
{
	for (const struct file *f = files; f && f->path; f++) {
		if (strcmp(f->path, path) == 0) {
			snprintf(buf, size, "%s", f->text);
			return 0;
		}
	}
	return below->read_file(arg, path, buf, size);
}

static int read_link(void *arg, const char *path, char *buf, size_t size)
{
	int r = read_file(arg, path, buf, size);

	return r < 0 ? below->read_link(arg, path, buf, size) : r;
}

static struct verbs_api api_of(struct fake_net *net, const struct file *list)
{
	struct verbs_api api;

	below = fake_verbs_api(net, 0);
	files = list;
	api = *below;
	api.read_file = read_file;
	api.read_link = read_link;
	return api;
}

static struct config *config_of(const char *text)
{
	struct config_report report = {0};
	struct config *c;

	cr_assert_eq(config_new(&c), 0);
	cr_assert_eq(config_parse(c, "f", text, strlen(text), &report), 0, "%s", report.text);
	return c;
}

/* The links of host 0 as text. */
static char *links_of(struct fake_net *net, const struct file *list, const char *config_text)
{
	struct config *c = config_of(config_text);
	struct rdma_options options = {&c->devices, &c->devices_denied};
	struct verbs_api api = api_of(net, list);
	struct rdma *devices;
	char *text;

	cr_assert_eq(rdma_new(&api, &options, &devices), 0);
	cr_assert_eq(links_json("hostA", c, devices, &text), 0);
	rdma_free(devices);
	config_free(c);
	return text;
}

static void has(const char *text, const char *part)
{
	cr_assert(strstr(text, part), "%s is not in %s", part, text);
}

Test(links_json, a_device_and_its_counters)
{
	static const struct file list[] = {
		{"/sys/class/infiniband/mlx5_0/fw_ver", "16.35.2000"},
		{"/sys/class/infiniband/mlx5_0/device/driver",
		 "../../../bus/pci/drivers/mlx5_core"},
		{"/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE"},
		{"/sys/class/infiniband/mlx5_0/ports/1/phys_state", "5: LinkUp"},
		{"/sys/class/infiniband/mlx5_0/ports/1/link_layer", "Ethernet"},
		{"/sys/class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)"},
		{"/sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence", "7"},
		{"/sys/class/infiniband/mlx5_0/ports/1/hw_counters/packet_seq_err", "3"},
		{"/sys/class/infiniband/mlx5_0/ports/1/hw_counters/roce_adp_retrans", "2"},
		{"/sys/class/infiniband/mlx5_0/ports/1/hw_counters/np_cnp_sent", "0"},
		{"/sys/class/infiniband/mlx5_0/ports/1/hw_counters/rp_cnp_handled", "N/A"},
		{"/sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_wait", "12"},
		{NULL, NULL},
	};
	struct fake_net *net = fake_verbs_new(1);
	char *text;

	fake_verbs_device(net, 0, "mlx5_0", 0);
	text = links_of(net, list, "");
	has(text, "\"host\":\"hostA\",\"transport\":\"auto\",\"require\":null,\"reason\":null");
	has(text, "\"name\":\"mlx5_0\",\"used\":true,\"reason\":null,\"removed\":false");
	has(text, "\"driver\":\"mlx5_core\",\"firmware\":\"16.35.2000\"");
	has(text, "\"usable\":true,\"reason\":null,\"state\":\"ACTIVE\",\"physical\":\"LinkUp\","
		  "\"layer\":\"Ethernet\",\"rate\":\"100 Gb/sec (4X EDR)\"");
	has(text, "\"gid\":\"10.0.0.1\",\"type\":\"v2\"");
	has(text, "\"memory\":{\"regions\":0,\"bytes\":0,\"regions_max\":1000,"
		  "\"refused\":{\"memlock\":0,\"full\":0,\"kind\":0,\"other\":0,"
		  "\"bound\":0,\"quota\":0}},\"registrations\":{\"made\":0,\"evicted\":0}");
	has(text, "\"memory\":{\"evictions\":0,\"returns\":0,\"fallbacks\":0,\"staged\":0,"
		  "\"staged_bytes\":0,\"reason\":null}");
	has(text, "\"out_of_sequence\":7,\"packet_seq_err\":3,\"roce_adp_retrans\":2,"
		  "\"np_cnp_sent\":0,\"port_xmit_wait\":12}");
	/* What the driver or its firmware does not have is null, and what it has is 0. */
	has(text, "\"network\":{\"out_of_sequence\":7,\"retransmits\":5,\"timeouts\":null,"
		  "\"receiver_not_ready\":null,\"cnp_sent\":0,\"cnp_handled\":null,"
		  "\"ecn_marked\":null,\"paused\":12,");
	free(text);
	fake_verbs_free(net);
}

/* Each device that is not used says why. */
Test(links_json, why_not)
{
	struct fake_net *net = fake_verbs_new(1);
	struct fake_device *closed = fake_verbs_device(net, 0, "mlx5_1", 1);
	struct fake_device *down = fake_verbs_device(net, 0, "mlx5_2", 2);
	char *text;

	fake_verbs_device(net, 0, "mlx5_0", 0);
	closed->caps.open_errno = EACCES;
	fake_verbs_link(down, false);
	text = links_of(net, NULL, "[rdma]\ndevices_denied = mlx5_0\n");
	has(text, "\"name\":\"mlx5_0\",\"used\":false");
	has(text, "\"usable\":false,\"reason\":\"denied by the configuration\"");
	has(text, "\"name\":\"mlx5_1\",\"used\":false,\"reason\":\"cannot be opened: Permission "
		  "denied; is its /dev/infiniband/uverbs node open to this process");
	has(text, "\"reason\":\"the port is down\"");
	free(text);
	fake_verbs_free(net);
}

Test(links_json, no_devices)
{
	struct fake_net *net = fake_verbs_new(1);
	struct config *c = config_of("[peer]\ntransport = tcp\n");
	char *text = links_of(net, NULL, "[peer]\nrequire = rdma\n");

	has(text, "\"require\":\"rdma\",\"reason\":\"no RDMA device in this network namespace\","
		  "\"devices\":[],\"memory\":{");
	free(text);
	cr_assert_eq(links_json("h", c, NULL, &text), 0);
	has(text, "\"reason\":\"transport = tcp: nobody looks for RDMA devices\"");
	free(text);
	config_free(c);
	fake_verbs_free(net);
}

Test(links_json, paths_of_two_peers)
{
	static const struct rails_path paths[] = {
		{.host_id = {1},
		 .peer = "hostB",
		 .tcp = true,
		 .reason = "RDMA is up",
		 .address = "10.47.0.2:4870 via eth0",
		 .live.bytes_sent = 5,
		 .live.bytes_received = 6},
		{.host_id = {1},
		 .peer = "hostB",
		 .chosen = true,
		 .reason = "the trial was answered",
		 .rail = 0,
		 .live.state = VERBS_RAIL_UP,
		 .device = "mlx5_0",
		 .port = 1,
		 .gid = "10.47.0.1",
		 .live.gid_index = 3,
		 .remote_gid = "10.47.0.2",
		 .live.mtu = 1024,
		 .live.local_mtu = 4096,
		 .live.remote_mtu = 1024,
		 .live.nqps = 2,
		 .live.udp_ports = {50000, 50001},
		 .live.bytes_sent = 77,
		 .live.failures = 1,
		 .live.reason = "status 12"},
		{.host_id = {2}, .peer = "hostC", .tcp = true, .reason = "no device there"},
		{.host_id = {2}, .peer = "hostC", .rail = -1, .reason = "hostC has no device"},
	};
	struct config *c = config_of("");
	struct rdma none = {.reason = "no RDMA device in this network namespace"};
	char *text;

	cr_assert_eq(paths_json("hostA", c, &none, paths, ARRAY_SIZE(paths), NULL, NULL, &text), 0);
	has(text,
	    "\"reason\":\"no RDMA device in this network "
	    "namespace\",\"gpus\":[],\"peers\":[{\"host\":"
	    "\"hostB\",\"host_id\":\"01000000000000000000000000000000\",\"transport\":\"rdma\"");
	has(text, "{\"kind\":\"tcp\",\"chosen\":false,\"reason\":\"RDMA is up\",\"state\":\"up\","
		  "\"address\":\"10.47.0.2:4870 via eth0\",\"bytes_sent\":5,\"bytes_received\":6}");
	has(text, "\"state\":\"up\",\"rail\":0,\"device\":\"mlx5_0\",\"port\":1");
	has(text, "\"mtu\":1024,\"local_mtu\":4096,\"remote_mtu\":1024");
	has(text, "\"udp_ports\":[50000,50001]");
	has(text, "\"failures\":1,\"error\":\"status 12\",\"bytes_sent\":77");
	has(text, "{\"host\":\"hostC\",\"host_id\":\"02000000000000000000000000000000\","
		  "\"transport\":null");
	has(text, "\"rail\":null,\"device\":null");
	free(text);
	config_free(c);
}

static char *check_of(const struct check_result *result, const char *config_text)
{
	struct fake_net *net = fake_verbs_new(1);
	struct config *c = config_of(config_text);
	struct rdma_options options = {&c->devices, &c->devices_denied};
	struct verbs_api api = api_of(net, NULL);
	struct rdma *devices;
	char *text;

	fake_verbs_device(net, 0, "mlx5_0", 0);
	cr_assert_eq(rdma_new(&api, &options, &devices), 0);
	cr_assert_eq(check_json("hostA", c, devices, result, &text), 0);
	rdma_free(devices);
	config_free(c);
	fake_verbs_free(net);
	return text;
}

Test(check_json, all_well)
{
	struct rails_path paths[] = {
		{.tcp = true, .peer = "hostB", .reason = "RDMA works"},
		{.peer = "hostB",
		 .chosen = true,
		 .live.state = VERBS_RAIL_UP,
		 .device = "mlx5_0",
		 .port = 1,
		 .live.mtu = 4096,
		 .live.local_mtu = 4096,
		 .live.remote_mtu = 4096,
		 .reason = "a trial transfer succeeded"},
	};
	struct check_result r = {
		.linked = true,
		.peer = "hostB",
		.address = "10.0.0.2:4870 via eth0",
		.paths = paths,
		.npaths = ARRAY_SIZE(paths),
		.latency =
			{.measured = true, .bytes = 8, .messages = 9, .elapsed = 9000, .mid = 1000},
		.bandwidth = {.measured = true,
			      .bytes = 1u << 20,
			      .messages = 1000,
			      .elapsed = 1000000000},
	};
	char *text = check_of(&r, "");

	has(text, "\"ok\":true,\"verdict\":\"hostB is reached over RDMA and TCP, all well\"}");
	has(text, "\"bytes_per_second\":1048576000}");
	has(text, "1048.6 MB/s over RDMA (1000 messages of 1 MiB)");
	has(text, "{\"what\":\"mtu\",\"ok\":true,");
	free(text);
	paths[1].live.remote_mtu = 1024;
	paths[1].live.traffic_class = 104;
	text = check_of(&r, "");
	has(text, "4096 bytes here, 1024 there");
	has(text, "DSCP 26 (traffic class 104) here, 0 (0) there");
	has(text, "\"ok\":false,\"verdict\":\"hostB is reached, with faults\"}");
	free(text);
}

Test(check_json, faults)
{
	struct rails_path paths[] = {
		{.tcp = true, .chosen = true, .peer = "hostB", .reason = "no rail is in use"},
		{.peer = "hostB",
		 .live.state = VERBS_RAIL_DOWN,
		 .device = "mlx5_0",
		 .reason = "UDP 4791 blocked?"},
	};
	struct check_result r = {
		.linked = true,
		.peer = "hostB",
		.paths = paths,
		.npaths = ARRAY_SIZE(paths),
		.latency = {.reason = "no message was answered in time"},
		.bandwidth = {.reason = "no message was answered in time"},
	};
	struct check_result none = {.peer = "10.0.0.9", .error = "nobody answers at 10.0.0.9:4870"};
	char *text = check_of(&r, "");

	has(text, "\"verdict\":\"TCP ok, RoCE blocked: no rail to hostB works\"}");
	has(text, "UDP 4791 blocked?");
	has(text, "\"latency\":null,\"bandwidth\":null");
	has(text, "not measured: no message was answered in time");
	free(text);
	text = check_of(&none, "");
	has(text, "no link: nobody answers at 10.0.0.9:4870");
	has(text, "\"ok\":false,\"verdict\":\"10.0.0.9 cannot be reached\"}");
	free(text);
	/* Where nobody wants RDMA its absence is no fault; where it is required it is. */
	r.npaths = 1;
	r.latency.measured = r.bandwidth.measured = true;
	r.latency.elapsed = r.bandwidth.elapsed = 1;
	text = check_of(&r, "[rdma]\ndevices_denied = *\n");
	has(text, "\"ok\":true,\"verdict\":\"hostB is reached over TCP, all well\"}");
	free(text);
	text = check_of(&r, "[peer]\nrequire = rdma\n[rdma]\ndevices_denied = *\n");
	has(text, "\"ok\":false");
	free(text);
}
