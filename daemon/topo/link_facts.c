/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Link facts: implementation
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#include "topo/link_facts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base.h"

#define CLASS "/sys/class/infiniband"

/* Names of mlx5, bnxt_re, irdma and rxe; those of one driver only are no less clear for that. */
const struct link_counter_row link_counter_rows[] = {
	/* mlx5 */
	{"out_of_sequence", LINK_OUT_OF_SEQUENCE, true},
	{"packet_seq_err", LINK_RETRANSMITS, true},
	{"implied_nak_seq_err", LINK_RETRANSMITS, true},
	{"duplicate_request", LINK_RETRANSMITS, true},
	{"roce_adp_retrans", LINK_RETRANSMITS, true},
	{"local_ack_timeout_err", LINK_TIMEOUTS, true},
	{"roce_adp_retrans_to", LINK_TIMEOUTS, true},
	{"rnr_nak_retry_err", LINK_NOT_READY, true},
	{"out_of_buffer", LINK_NOT_READY, true},
	{"np_cnp_sent", LINK_CNP_SENT, true},
	{"rp_cnp_handled", LINK_CNP_HANDLED, true},
	{"np_ecn_marked_roce_packets", LINK_ECN_MARKED, true},
	{"req_transport_retries_exceeded", LINK_ERRORS, true},
	{"rx_icrc_encapsulated", LINK_ERRORS, true},
	{"port_xmit_wait", LINK_PAUSED, false},
	{"port_xmit_discards", LINK_DISCARDS, false},
	{"port_rcv_errors", LINK_ERRORS, false},
	{"symbol_error", LINK_ERRORS, false},
	{"link_downed", LINK_DOWN, false},
	/* bnxt_re */
	{"res_oos_drop_count", LINK_OUT_OF_SEQUENCE, true},
	{"seq_err_naks_rcvd", LINK_RETRANSMITS, true},
	{"to_retransmits", LINK_TIMEOUTS, true},
	{"rnr_naks_rcvd", LINK_NOT_READY, true},
	{"tx_cnp_pkts", LINK_CNP_SENT, true},
	{"rx_cnp_pkts", LINK_CNP_HANDLED, true},
	{"rx_ecn_marked_pkts", LINK_ECN_MARKED, true},
	{"rx_roce_discards", LINK_DISCARDS, true},
	{"tx_roce_discards", LINK_DISCARDS, true},
	{"max_retry_exceeded", LINK_ERRORS, true},
	/* irdma */
	{"tcpRetransSegs", LINK_RETRANSMITS, true},
	{"cnpSent", LINK_CNP_SENT, true},
	{"cnpHandled", LINK_CNP_HANDLED, true},
	{"RxECNMrkd", LINK_ECN_MARKED, true},
	{"ip4InDiscards", LINK_DISCARDS, true},
	{"ip6InDiscards", LINK_DISCARDS, true},
	/* rxe */
	{"out_of_seq_request", LINK_OUT_OF_SEQUENCE, true},
	{"rcvd_seq_err", LINK_RETRANSMITS, true},
	{"completer_retry_err", LINK_TIMEOUTS, true},
	{"send_rnr_err", LINK_NOT_READY, true},
	{"rcvd_rnr_err", LINK_NOT_READY, true},
	{"retry_exceeded_err", LINK_ERRORS, true},
	{"retry_rnr_exceeded_err", LINK_ERRORS, true},
	{"link_downed", LINK_DOWN, true},
};
const size_t link_counter_nrows = ARRAY_SIZE(link_counter_rows);

static const char *const kind_names[LINK_KIND_COUNT_] = {
	[LINK_OUT_OF_SEQUENCE] = "out_of_sequence",
	[LINK_RETRANSMITS] = "retransmits",
	[LINK_TIMEOUTS] = "timeouts",
	[LINK_NOT_READY] = "receiver_not_ready",
	[LINK_CNP_SENT] = "cnp_sent",
	[LINK_CNP_HANDLED] = "cnp_handled",
	[LINK_ECN_MARKED] = "ecn_marked",
	[LINK_PAUSED] = "paused",
	[LINK_DISCARDS] = "discards",
	[LINK_ERRORS] = "errors",
	[LINK_DOWN] = "link_downed",
};

/* See link_facts.h. */
const char *link_counter_kind_name(enum link_counter_kind kind)
{
	return kind_names[kind];
}

/* The text of a file, or "". */
static void read_text(const struct rdma_device *d, const char *path, char *buf, size_t size)
{
	if (d->api->read_file(d->api->arg, path, buf, size) < 0) {
		buf[0] = '\0';
	}
}

/* Keeps what stands behind ": ", as in "4: ACTIVE". */
static void drop_number(char *text)
{
	char *colon = strstr(text, ": ");

	if (colon) {
		memmove(text, colon + 2, strlen(colon + 2) + 1);
	}
}

/* "../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/infiniband/x" -> its middle. */
static void read_pci_path(const struct rdma_device *d, char *buf, size_t size)
{
	char path[sizeof(CLASS) + IBV_SYSFS_NAME_MAX + 8], text[256];
	char *begin, *end;

	buf[0] = '\0';
	snprintf(path, sizeof(path), CLASS "/%s", d->name);
	if (!d->pci[0] || d->api->read_link(d->api->arg, path, text, sizeof(text)) < 0) {
		return;
	}
	begin = strstr(text, "/pci");
	end = strstr(text, "/infiniband/");
	if (begin && end && begin < end) {
		snprintf(buf, size, "%.*s", (int)(end - begin - 1), begin + 1);
	}
}

/* See link_facts.h. */
void link_device_read(const struct rdma_device *d, struct link_device *ret)
{
	char path[sizeof(CLASS) + IBV_SYSFS_NAME_MAX + 32], text[256];
	const char *slash;

	*ret = (struct link_device){.driver = ""};
	snprintf(path, sizeof(path), CLASS "/%s/fw_ver", d->name);
	read_text(d, path, ret->firmware, sizeof(ret->firmware));
	read_pci_path(d, ret->pci_path, sizeof(ret->pci_path));
	snprintf(path, sizeof(path), CLASS "/%s/device/driver", d->name);
	if (d->api->read_link(d->api->arg, path, text, sizeof(text)) >= 0) {
		slash = strrchr(text, '/');
		snprintf(ret->driver, sizeof(ret->driver), "%.31s", slash ? slash + 1 : text);
	} else if (d->software) {
		/* Without a device below there is no driver either; rxe and siw say so themselves.
		 */
		snprintf(path, sizeof(path), CLASS "/%s/node_desc", d->name);
		read_text(d, path, ret->driver, sizeof(ret->driver));
	}
}

static void read_port_file(const struct rdma_port *port, const char *name, char *buf, size_t size)
{
	char path[sizeof(CLASS) + IBV_SYSFS_NAME_MAX + 64];

	snprintf(path, sizeof(path), CLASS "/%s/ports/%u/%s", port->device->name, port->number,
		 name);
	read_text(port->device, path, buf, size);
}

/* See link_facts.h. */
void link_port_read(const struct rdma_port *port, struct link_port *ret)
{
	read_port_file(port, "state", ret->state, sizeof(ret->state));
	read_port_file(port, "phys_state", ret->physical, sizeof(ret->physical));
	read_port_file(port, "link_layer", ret->layer, sizeof(ret->layer));
	read_port_file(port, "rate", ret->rate, sizeof(ret->rate));
	drop_number(ret->state);
	drop_number(ret->physical);
}

static int parse_number(const char *text, uint64_t *ret)
{
	char *end;
	unsigned long long v;

	errno = 0;
	v = strtoull(text, &end, 10);
	if (errno != 0 || end == text || *end != '\0') {
		return -EINVAL;
	}
	*ret = v;
	return 0;
}

/* See link_facts.h. */
int link_counter_read(const struct rdma_port *port, const struct link_counter_row *row,
		      uint64_t *ret)
{
	const struct verbs_api *api = port->device->api;
	char path[sizeof(CLASS) + IBV_SYSFS_NAME_MAX + 96], text[32];
	int r;

	snprintf(path, sizeof(path), CLASS "/%s/ports/%u/%s/%s", port->device->name, port->number,
		 row->hw ? "hw_counters" : "counters", row->name);
	r = api->read_file(api->arg, path, text, sizeof(text));
	/* "N/A" of a counter that the firmware does not have is none, too. */
	return r < 0 ? r : parse_number(text, ret) < 0 ? -ENOENT : 0;
}

/* See link_facts.h. */
uint32_t link_interface_mtu(const struct rdma_device *d, const char *interface)
{
	char path[64], text[32];
	uint64_t mtu;

	if (!interface[0] || strchr(interface, '/')) {
		return 0;
	}
	snprintf(path, sizeof(path), "/sys/class/net/%.16s/mtu", interface);
	read_text(d, path, text, sizeof(text));
	return parse_number(text, &mtu) == 0 && mtu <= UINT32_MAX ? (uint32_t)mtu : 0;
}
