/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Links, paths and checks as text: implementation
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include "tools/rocectl/links_text.h"

#include <stdio.h>
#include <string.h>

#include "proto/base.h"

#define TEXT 32

/* ---- links -------------------------------------------------------------------------------- */

static const char *or_dash(const char *text)
{
	return text[0] ? text : "-";
}

/* In the order in which they are printed; the members of "network". */
static const struct {
	const char *key, *title;
} counters[] = {
	{"out_of_sequence", "out of sequence"},
	{"retransmits", "sent again"},
	{"timeouts", "time-outs"},
	{"receiver_not_ready", "receiver not ready"},
	{"cnp_sent", "CNP sent"},
	{"cnp_handled", "CNP handled"},
	{"ecn_marked", "ECN marked"},
	{"paused", "paused"},
	{"discards", "discards"},
	{"errors", "errors"},
	{"link_downed", "link down"},
};

/* The same port in an earlier snapshot, or NULL. */
static const json_t *earlier_port(const struct snapshot *before, const char *device,
				  json_int_t number)
{
	json_t *d, *port;
	size_t i, k;

	json_array_foreach(before ? json_object_get(before->root, "devices") : NULL, i, d)
	{
		json_array_foreach(json_object_get(d, "ports"), k, port)
		{
			if (strcmp(snapshot_string(d, "name"), device) == 0 &&
			    snapshot_number(port, "number") == number) {
				return port;
			}
		}
	}
	return NULL;
}

static void print_counters(const json_t *port, const json_t *earlier)
{
	const json_t *network = json_object_get(port, "network");
	const json_t *old = json_object_get(earlier, "network");

	printf("    counters:");
	for (size_t i = 0; i < ARRAY_SIZE(counters); i++) {
		const char *comma = i + 1 < ARRAY_SIZE(counters) ? "," : "";

		if (json_is_integer(json_object_get(network, counters[i].key))) {
			printf(" %s %lld%s", counters[i].title,
			       (long long)(snapshot_number(network, counters[i].key) -
					   snapshot_number(old, counters[i].key)),
			       comma);
		} else {
			printf(" %s n/a%s", counters[i].title, comma);
		}
	}
	putchar('\n');
}

static void print_gids(const json_t *port)
{
	json_t *gid;
	size_t i;

	json_array_foreach(json_object_get(port, "gids"), i, gid)
	{
		json_int_t vlan = snapshot_number(gid, "vlan");
		json_int_t mtu = snapshot_number(gid, "interface_mtu");
		char type[TEXT] = "";

		if (strcmp(snapshot_string(gid, "type"), "v2") == 0) {
			snprintf(type, sizeof(type), ", RoCE v2");
		}
		printf("    GID %lld: %s%s on %s", (long long)snapshot_number(gid, "index"),
		       snapshot_string(gid, "gid"), type,
		       or_dash(snapshot_string(gid, "interface")));
		if (mtu > 0) {
			printf(" (MTU %lld)", (long long)mtu);
		}
		if (vlan > 0) {
			printf(", VLAN %lld", (long long)vlan);
		}
		if (!json_is_true(json_object_get(gid, "usable"))) {
			printf("; not used: %s", snapshot_string(gid, "reason"));
		}
		putchar('\n');
	}
}

static void print_port(const json_t *port, const json_t *earlier)
{
	json_int_t mtu = snapshot_number(port, "mtu");

	printf("  port %lld: %s, %s, %s, %s", (long long)snapshot_number(port, "number"),
	       or_dash(snapshot_string(port, "state")), or_dash(snapshot_string(port, "physical")),
	       or_dash(snapshot_string(port, "layer")), or_dash(snapshot_string(port, "rate")));
	if (mtu > 0) {
		printf(", RoCE MTU %lld", (long long)mtu);
	}
	if (json_is_true(json_object_get(port, "usable"))) {
		printf("; can be used\n");
	} else {
		printf("; not used: %s\n", snapshot_string(port, "reason"));
	}
	print_gids(port);
	print_counters(port, earlier);
}

/* What is registered with the device, and why the rest is not. */
static void print_memory(const json_t *device)
{
	static const struct {
		const char *key, *text;
	} causes[] = {
		{"memlock", "by the limit of locked memory"},
		{"full", "for the device takes no more"},
		{"kind", "of a kind that it does not take"},
		{"other", "for other reasons (see the log)"},
		{"bound", "by the bounds on registered memory"},
		{"quota", "by a tenant's max_pinned"},
	};
	const json_t *memory = json_object_get(device, "memory");
	const json_t *refused = json_object_get(memory, "refused");
	const json_t *registrations = json_object_get(device, "registrations");
	const char *before = "; refused";
	char bytes[TEXT];
	json_int_t made;

	printf("  memory: %lld regions, %s registered",
	       (long long)snapshot_number(memory, "regions"),
	       text_bytes((double)snapshot_number(memory, "bytes"), bytes, sizeof(bytes)));
	for (size_t i = 0; i < ARRAY_SIZE(causes); i++) {
		json_int_t n = snapshot_number(refused, causes[i].key);

		if (n > 0) {
			printf("%s %lld %s", before, (long long)n, causes[i].text);
			before = ",";
		}
	}
	made = snapshot_number(registrations, "made");
	if (snapshot_number(registrations, "evicted") > 0) {
		printf("; %lld registrations so far, %lld of them given back for others",
		       (long long)made, (long long)snapshot_number(registrations, "evicted"));
	}
	putchar('\n');
}

/* Memory of clients that has, or had, no room with devices. */
static void print_room(const json_t *room)
{
	json_int_t staged = snapshot_number(room, "staged");
	char bytes[TEXT];

	if (snapshot_number(room, "evictions") == 0 && snapshot_number(room, "fallbacks") == 0) {
		return;
	}
	printf("memory of clients: %lld buffers gave way to others, %lld of them came back; ",
	       (long long)snapshot_number(room, "evictions"),
	       (long long)snapshot_number(room, "returns"));
	printf("now %lld go through copies, %s\n", (long long)staged,
	       text_bytes((double)snapshot_number(room, "staged_bytes"), bytes, sizeof(bytes)));
	if (snapshot_string(room, "reason")[0]) {
		printf("  found no room %lld times, at last: %s\n",
		       (long long)snapshot_number(room, "fallbacks"),
		       snapshot_string(room, "reason"));
	}
}

static void print_device(const json_t *device, const struct snapshot *before)
{
	const json_t *numa = json_object_get(device, "numa");
	const char *name = snapshot_string(device, "name");
	const char *reason = snapshot_string(device, "reason");
	const char *driver = snapshot_string(device, "driver");
	const char *firmware = snapshot_string(device, "firmware");
	json_t *port;
	size_t i;

	printf("%s:", name);
	if (json_is_true(json_object_get(device, "software"))) {
		printf(" %s, software RoCE, not for performance", or_dash(driver));
	} else {
		printf(" %s at %s", or_dash(driver), or_dash(snapshot_string(device, "pci")));
	}
	if (json_is_integer(numa)) {
		printf(", NUMA node %lld", (long long)json_integer_value(numa));
	}
	if (firmware[0]) {
		printf(", firmware %s", firmware);
	}
	if (reason[0]) {
		printf("; not used: %s", reason);
	}
	putchar('\n');
	if (snapshot_string(device, "pci_path")[0]) {
		printf("  path: %s\n", snapshot_string(device, "pci_path"));
	}
	print_memory(device);
	json_array_foreach(json_object_get(device, "ports"), i, port)
	{
		print_port(port, earlier_port(before, name, snapshot_number(port, "number")));
	}
}

static void print_head(const struct snapshot *now)
{
	const char *require = snapshot_string(now->root, "require");
	const char *reason = snapshot_string(now->root, "reason");

	printf("%s: transport %s%s%s\n", snapshot_string(now->root, "host"),
	       snapshot_string(now->root, "transport"), require[0] ? ", requires " : "", require);
	if (reason[0]) {
		printf("%s\n", reason);
	}
}

void links_text_print(const struct snapshot *now, const struct snapshot *before)
{
	json_t *device;
	size_t i;

	print_head(now);
	if (before) {
		printf("(counters of the last %.1f s)\n", now->at - before->at);
	}
	json_array_foreach(json_object_get(now->root, "devices"), i, device)
	{
		print_device(device, before);
	}
	print_room(json_object_get(now->root, "memory"));
}

/* ---- paths -------------------------------------------------------------------------------- */

static void print_bytes(const json_t *path)
{
	char sent[TEXT], received[TEXT], rate[TEXT];

	printf("      sent %s, received %s",
	       text_bytes((double)snapshot_number(path, "bytes_sent"), sent, sizeof(sent)),
	       text_bytes((double)snapshot_number(path, "bytes_received"), received,
			  sizeof(received)));
	if (snapshot_number(path, "bytes_per_second") > 0) {
		printf(", lately %s/s",
		       text_bytes((double)snapshot_number(path, "bytes_per_second"), rate,
				  sizeof(rate)));
	}
	putchar('\n');
}

/* What was agreed on, and where the two ends differ. */
static void print_agreed(const json_t *path)
{
	json_int_t local = snapshot_number(path, "local_mtu");
	json_int_t remote = snapshot_number(path, "remote_mtu");
	json_int_t class = snapshot_number(path, "traffic_class");
	json_int_t other = snapshot_number(path, "remote_traffic_class");

	if (snapshot_number(path, "mtu") == 0) {
		return;
	}
	printf("      MTU %lld", (long long)snapshot_number(path, "mtu"));
	if (local != remote) {
		printf(" (%lld here, %lld there)", (long long)local, (long long)remote);
	}
	printf(", %lld queue pairs, traffic class %lld (DSCP %lld)",
	       (long long)snapshot_number(path, "qps"), (long long)class, (long long)class >> 2);
	if (class != other) {
		printf(", but %lld there: set the same on all hosts", (long long)other);
	}
	putchar('\n');
}

static void print_rail(const json_t *path)
{
	const char *device = snapshot_string(path, "device");
	const char *remote = snapshot_string(path, "remote_device");

	if (json_is_integer(json_object_get(path, "rail"))) {
		printf("rail %lld: ", (long long)snapshot_number(path, "rail"));
	} else {
		printf("rdma: ");
	}
	if (device[0]) {
		printf("%s/%lld %s %s", device, (long long)snapshot_number(path, "port"),
		       or_dash(snapshot_string(path, "interface")),
		       or_dash(snapshot_string(path, "gid")));
	} else {
		printf("no device here");
	}
	if (remote[0] || snapshot_string(path, "remote_gid")[0]) {
		printf(" -> %s/%lld %s", or_dash(remote),
		       (long long)snapshot_number(path, "remote_port"),
		       or_dash(snapshot_string(path, "remote_gid")));
	}
	printf(" (%s)\n", snapshot_string(path, "state"));
}

static void print_path(const json_t *path)
{
	bool chosen = json_is_true(json_object_get(path, "chosen"));
	bool tcp = strcmp(snapshot_string(path, "kind"), "tcp") == 0;

	printf("  %c ", chosen ? '*' : ' ');
	if (tcp) {
		printf("tcp: %s\n", or_dash(snapshot_string(path, "address")));
	} else {
		print_rail(path);
	}
	printf("      %s: %s\n", chosen ? "used" : "not used", snapshot_string(path, "reason"));
	if (!tcp) {
		print_agreed(path);
	}
	if (snapshot_number(path, "bytes_sent") > 0 ||
	    snapshot_number(path, "bytes_received") > 0) {
		print_bytes(path);
	}
	if (snapshot_number(path, "failures") > 0) {
		printf("      left %lld times, last: %s\n",
		       (long long)snapshot_number(path, "failures"),
		       or_dash(snapshot_string(path, "error")));
	}
}

/* What a trial of a device with a GPU's memory has shown, and what is between the two. */
static void print_nic(const json_t *row)
{
	const char *warning = snapshot_string(row, "warning");
	const char *unseen = snapshot_string(row, "unseen");

	printf("    %s %s\n", snapshot_string(row, "device"), snapshot_string(row, "reason"));
	if (warning[0]) {
		printf("      WARNING: %s\n", warning);
	}
	if (unseen[0]) {
		printf("      %s\n", unseen);
	}
}

/* How a GPU's memory reaches the network and the other GPUs. */
static void print_gpu(const json_t *gpu)
{
	json_t *row;
	size_t i;

	printf("%s (%s): %s, %s\n", snapshot_string(gpu, "uuid"), snapshot_string(gpu, "name"),
	       snapshot_string(gpu, "path"), snapshot_string(gpu, "reason"));
	json_array_foreach(json_object_get(gpu, "devices"), i, row)
	{
		print_nic(row);
	}
	json_array_foreach(json_object_get(gpu, "peers"), i, row)
	{
		bool direct = strcmp(snapshot_string(row, "path"), "direct") == 0;

		printf("  %c to %s: %s, %s\n", direct ? '*' : ' ', snapshot_string(row, "uuid"),
		       snapshot_string(row, "path"), snapshot_string(row, "reason"));
	}
}

void paths_text_print(const struct snapshot *now)
{
	json_t *peer, *path, *gpu;
	size_t i, k;

	print_head(now);
	json_array_foreach(json_object_get(now->root, "gpus"), i, gpu)
	{
		print_gpu(gpu);
	}
	json_array_foreach(json_object_get(now->root, "peers"), i, peer)
	{
		const char *transport = snapshot_string(peer, "transport");

		printf("%s: %s\n", snapshot_string(peer, "host"),
		       transport[0] ? transport : "no way to send is open");
		json_array_foreach(json_object_get(peer, "paths"), k, path)
		{
			print_path(path);
		}
	}
	if (i == 0) {
		printf("no other host is linked; communicators make links\n");
	}
}

/* ---- check -------------------------------------------------------------------------------- */

bool check_text_print(const struct snapshot *now)
{
	bool ok = json_is_true(json_object_get(now->root, "ok"));
	json_t *finding;
	size_t i;

	json_array_foreach(json_object_get(now->root, "findings"), i, finding)
	{
		printf("%-5s %-10s %s\n",
		       json_is_true(json_object_get(finding, "ok")) ? "ok" : "FAULT",
		       snapshot_string(finding, "what"), snapshot_string(finding, "text"));
	}
	printf("%s\n", snapshot_string(now->root, "verdict"));
	return ok;
}
