/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Verbs: the table of the real libibverbs
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "topo/verbs_api.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_vlan.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/base.h"

static struct ibv_device **system_get_device_list(void *arg, int *count)
{
	return ibv_get_device_list(count);
}

static void system_free_device_list(void *arg, struct ibv_device **list)
{
	ibv_free_device_list(list);
}

static int system_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *ret)
{
	return ibv_query_port(context, port, ret);
}

static int system_query_gid(struct ibv_context *context, uint8_t port, uint32_t index,
			    struct ibv_gid_entry *ret)
{
	return ibv_query_gid_ex(context, port, index, ret, 0);
}

static ssize_t system_query_gids(struct ibv_context *context, struct ibv_gid_entry *ret, size_t max)
{
	return ibv_query_gid_table(context, ret, max, 0);
}

static int system_netdev(void *arg, uint32_t ifindex, struct verbs_netdev *ret)
{
	struct vlan_ioctl_args vlan = {.cmd = GET_VLAN_VID_CMD};
	struct verbs_netdev found = {0};
	cleanup_close int fd = -1;

	if (!if_indextoname(ifindex, found.name)) {
		return -errno;
	}
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0) {
		return err_origin(-errno);
	}
	memcpy(vlan.device1, found.name, sizeof(found.name));
	if (ioctl(fd, SIOCGIFVLAN, &vlan) == 0) {
		found.vlan = (uint16_t)vlan.u.VID;
	}
	*ret = found;
	return 0;
}

static int system_read_file(void *arg, const char *path, char *buf, size_t size)
{
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0) {
		return -errno;
	}
	n = read(fd, buf, size - 1);
	if (n < 0) {
		return -errno;
	}
	buf[n] = '\0';
	buf[strcspn(buf, "\n")] = '\0';
	return 0;
}

static int system_read_link(void *arg, const char *path, char *buf, size_t size)
{
	ssize_t n = readlink(path, buf, size - 1);

	if (n < 0) {
		return -errno;
	}
	buf[n] = '\0';
	return 0;
}

static int system_get_async_event(struct ibv_context *context, struct ibv_async_event *ret)
{
	return ibv_get_async_event(context, ret);
}

static void system_ack_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	ibv_ack_async_event(event);
}

static struct ibv_mr *system_reg_mr(struct ibv_pd *pd, void *base, size_t size, unsigned int access)
{
	return ibv_reg_mr_iova2(pd, base, size, (uintptr_t)base, access);
}

static struct ibv_mr *system_reg_dmabuf(struct ibv_pd *pd, uint64_t offset, size_t size,
					uint64_t iova, int fd, unsigned int access)
{
	return ibv_reg_dmabuf_mr(pd, offset, size, iova, fd, (int)access);
}

static struct ibv_comp_channel *system_create_channel(struct ibv_context *context)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);

	if (channel && fcntl(channel->fd, F_SETFL, O_NONBLOCK) < 0) {
		int saved = errno;

		ibv_destroy_comp_channel(channel);
		errno = saved;
		return NULL;
	}
	return channel;
}

static struct ibv_cq *system_create_cq(struct ibv_context *context, int entries, void *user,
				       struct ibv_comp_channel *channel)
{
	return ibv_create_cq(context, entries, user, channel, 0);
}

static int system_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *ret)
{
	return ibv_poll_cq(cq, count, ret);
}

static int system_notify_cq(struct ibv_cq *cq)
{
	return ibv_req_notify_cq(cq, 0);
}

static int system_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **ret)
{
	void *user;

	return ibv_get_cq_event(channel, ret, &user);
}

static int system_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	return ibv_post_send(qp, wr, bad);
}

static int system_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return ibv_post_recv(qp, wr, bad);
}

const struct verbs_api verbs_api_system = {
	.get_device_list = system_get_device_list,
	.free_device_list = system_free_device_list,
	.open_device = ibv_open_device,
	.close_device = ibv_close_device,
	.query_device = ibv_query_device,
	.query_port = system_query_port,
	.query_gid = system_query_gid,
	.query_gids = system_query_gids,
	.netdev = system_netdev,
	.read_file = system_read_file,
	.read_link = system_read_link,
	.get_async_event = system_get_async_event,
	.ack_async_event = system_ack_async_event,
	.alloc_pd = ibv_alloc_pd,
	.dealloc_pd = ibv_dealloc_pd,
	.reg_mr = system_reg_mr,
	.reg_dmabuf = system_reg_dmabuf,
	.dereg_mr = ibv_dereg_mr,
	.create_channel = system_create_channel,
	.destroy_channel = ibv_destroy_comp_channel,
	.create_cq = system_create_cq,
	.destroy_cq = ibv_destroy_cq,
	.poll_cq = system_poll_cq,
	.notify_cq = system_notify_cq,
	.get_cq_event = system_get_cq_event,
	.ack_cq_events = ibv_ack_cq_events,
	.create_qp = ibv_create_qp,
	.modify_qp = ibv_modify_qp,
	.query_qp = ibv_query_qp,
	.destroy_qp = ibv_destroy_qp,
	.post_send = system_post_send,
	.post_recv = system_post_recv,
};

const char *verbs_qp_state_text(enum ibv_qp_state state)
{
	static const char *const texts[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};

	return (size_t)state < ARRAY_SIZE(texts) ? texts[state] : "unknown";
}
