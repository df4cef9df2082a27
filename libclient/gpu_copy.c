/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * GPU: copies between device memory and staging, by copy engines
 *
 * On a stream of our own: the user's may wait for the very operation that is copied for, and the
 * legacy stream for all of them.
 *
 * Thread: any      Owns: the copy streams      Locks: gpu.copy
 */
#include "libclient/client.h"
#include "libclient/error.h"
#include "libclient/gpu.h"
#include "libclient/request.h"

static CUresult copy_stream(const struct cuda_abi *cu, struct gpu *gpu, int device, CUstream *ret)
{
	CUresult r = CUDA_SUCCESS;

	if (!gpu->copy_stream[device]) {
		r = cu->StreamCreate(&gpu->copy_stream[device], CU_STREAM_NON_BLOCKING);
	}
	*ret = gpu->copy_stream[device];
	return r;
}

int gpu_copy(struct roce_client *client, const struct copy_list *list, bool out)
{
	const struct copy_seg *segs = list->many ? list->many : &list->one;
	const struct cuda_abi *cu = gpu_cuda();
	int device = (int)list->gpu - 1;
	CUstream stream;
	CUresult r;
	int status = gpu_push(client, device);

	if (status != 0) {
		return status;
	}
	pthread_mutex_lock(&client->gpu.copy);
	r = copy_stream(cu, &client->gpu, device, &stream);
	for (size_t i = 0; r == CUDA_SUCCESS && i < list->n; i++) {
		CUdeviceptr user = (uintptr_t)segs[i].user, stage = (uintptr_t)segs[i].stage;

		r = out ? cuda_abi_upload(cu, user, segs[i].stage, segs[i].size, stream)
			: cu->MemcpyAsync(stage, user, segs[i].size, stream);
	}
	if (r == CUDA_SUCCESS) {
		r = cu->StreamSynchronize(stream);
	}
	pthread_mutex_unlock(&client->gpu.copy);
	gpu_pop();
	return r == CUDA_SUCCESS ? 0 : gpu_error("copying device memory to or from staging", r);
}
