/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Verbs: every call into libibverbs, as a table that a test can fill with its own
 *
 * The types are those of <infiniband/verbs.h>, and so are the meanings and results of the calls:
 * pointers are NULL with errno set, numbers are 0 or a positive errno. `arg` is for the calls that
 * have no object to start from.
 *
 * Thread: any; the table is constant      Owns: nothing      Locks: none (libibverbs has its own)
 */
#ifndef ROCECOMM_TOPO_VERBS_API_H
#define ROCECOMM_TOPO_VERBS_API_H

#include <infiniband/verbs.h>
#include <net/if.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* What the network stack says of an interface. */
struct verbs_netdev {
	char name[IF_NAMESIZE];
	uint16_t vlan; /* 0: none */
};

struct verbs_api {
	void *arg;

	/* devices */
	struct ibv_device **(*get_device_list)(void *arg, int *count);
	void (*free_device_list)(void *arg, struct ibv_device **list);
	struct ibv_context *(*open_device)(struct ibv_device *device);
	int (*close_device)(struct ibv_context *context);
	int (*query_device)(struct ibv_context *context, struct ibv_device_attr *ret);
	int (*query_port)(struct ibv_context *context, uint8_t port, struct ibv_port_attr *ret);
	int (*query_gid)(struct ibv_context *context, uint8_t port, uint32_t index,
			 struct ibv_gid_entry *ret);
	/* All valid entries of all ports. Return: how many, negative errno. */
	ssize_t (*query_gids)(struct ibv_context *context, struct ibv_gid_entry *ret, size_t max);
	/* Return: 0, negative errno. */
	int (*netdev)(void *arg, uint32_t ifindex, struct verbs_netdev *ret);
	/* Reads a small file of sysfs, without its last newline. Return: 0, negative errno. */
	int (*read_file)(void *arg, const char *path, char *buf, size_t size);
	/* Where a symbolic link of sysfs ends. Return: 0, negative errno. */
	int (*read_link)(void *arg, const char *path, char *buf, size_t size);
	int (*get_async_event)(struct ibv_context *context, struct ibv_async_event *ret);
	void (*ack_async_event)(struct ibv_context *context, struct ibv_async_event *event);

	/* memory */
	struct ibv_pd *(*alloc_pd)(struct ibv_context *context);
	int (*dealloc_pd)(struct ibv_pd *pd);
	struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *base, size_t size, unsigned int access);
	struct ibv_mr *(*reg_dmabuf)(struct ibv_pd *pd, uint64_t offset, size_t size, uint64_t iova,
				     int fd, unsigned int access);
	int (*dereg_mr)(struct ibv_mr *mr);

	/* completions */
	struct ibv_comp_channel *(*create_channel)(struct ibv_context *context);
	int (*destroy_channel)(struct ibv_comp_channel *channel);
	struct ibv_cq *(*create_cq)(struct ibv_context *context, int entries, void *user,
				    struct ibv_comp_channel *channel);
	int (*destroy_cq)(struct ibv_cq *cq);
	int (*poll_cq)(struct ibv_cq *cq, int count, struct ibv_wc *ret);
	int (*notify_cq)(struct ibv_cq *cq);
	/* Does not block when the channel's descriptor does not. Return: 0, -1 with errno. */
	int (*get_cq_event)(struct ibv_comp_channel *channel, struct ibv_cq **ret);
	void (*ack_cq_events)(struct ibv_cq *cq, unsigned int count);

	/* queue pairs */
	struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
	int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
	int (*query_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
			struct ibv_qp_init_attr *init);
	int (*destroy_qp)(struct ibv_qp *qp);
	int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
	int (*post_recv)(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
};

/* The real one. */
extern const struct verbs_api verbs_api_system;

const char *verbs_qp_state_text(enum ibv_qp_state state);

#endif
