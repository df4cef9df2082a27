/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * gpu-rank loop and churn: to be killed, to have its daemon killed, to wear things out
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <stdio.h>

#include "rank.h"

/*
 * Prints "ready" when it runs. After a failure: "failed STATUS MS TEXT", where MS is how long the
 * last stream synchronisation and the look at the error took together. Exit status 3 then.
 */
int run_loop(struct rank *r)
{
	double end = now_us() + r->seconds * 1e6, begin;
	struct memory m[2];
	char text[600];
	long n = 0;
	int rc;

	memory_new(r, MEMORY_IPC, r->bytes, &m[0]);
	memory_new(r, MEMORY_VMM, r->bytes, &m[1]);
	do {
		begin = now_us();
		for (int i = 0; i < 4; i++) {
			void *p = (void *)(uintptr_t)m[i % 2].base;

			rc = roce_allreduce_stream(p, p, r->bytes / 4, ROCE_F32, ROCE_SUM, r->comm,
						   r->stream, NULL);
			if (rc != ROCE_OK) {
				break;
			}
		}
		must_cuda(r, r->cu.StreamSynchronize(r->stream), "cuStreamSynchronize");
		rc = roce_comm_error(r->comm, text, sizeof(text));
		if (rc != ROCE_OK) {
			printf("failed %s %.0f %s\n", roce_status_name(rc),
			       (now_us() - begin) / 1e3, text);
			return 3;
		}
		if (n++ == 2) {
			printf("ready\n");
		}
	} while (now_us() < end);
	printf("done %ld\n", n);
	return 0;
}

/* Memory that comes and goes, at the same addresses again. */
int run_churn(struct rank *r)
{
	double end = now_us() + r->seconds * 1e6;
	CUdeviceptr spacer;
	int32_t go = 1;
	long n = 0;

	/* Small allocations share a block of the driver: from here on none is at its begin. */
	must_cuda(r, r->cu.MemAlloc(&spacer, 1000), "cuMemAlloc");
	while (go) {
		uint32_t in = (uint32_t)(n % 1000), out = 0;
		struct memory m;
		void *p;

		memory_new(r, n % 3 == 0 ? MEMORY_VMM : MEMORY_IPC, 64 << (n % 12), &m);
		must_cuda(r, r->cu.Memcpy(m.base, (uintptr_t)&in, 4), "input");
		must_cuda(r, r->cu.CtxSynchronize(), "cuCtxSynchronize");
		p = (void *)(uintptr_t)m.base;
		must(roce_allreduce_stream(p, (char *)p + 16, 1, ROCE_U32, ROCE_SUM, r->comm,
					   r->stream, NULL),
		     "roce_allreduce_stream");
		must_cuda(r, r->cu.StreamSynchronize(r->stream), "cuStreamSynchronize");
		must_cuda(r, r->cu.Memcpy((uintptr_t)&out, m.base + 16, 4), "result");
		if (out != in * (uint32_t)r->size) {
			die("round %ld: %u, %u is due: memory that was freed is still used", n, out,
			    in * (uint32_t)r->size);
		}
		/* Every other one is freed behind the library's back. */
		if (n % 2 == 0) {
			memory_free(r, &m);
		} else if (m.kind == MEMORY_IPC) {
			must_cuda(r, r->cu.MemFree(m.base), "cuMemFree");
		} else {
			must_cuda(r, r->cu.MemUnmap(m.base, m.size), "cuMemUnmap");
			must_cuda(r, r->cu.MemAddressFree(m.base, m.size), "cuMemAddressFree");
		}
		go = now_us() < end;
		must(roce_broadcast(&go, 1, ROCE_I32, 0, r->comm), "roce_broadcast");
		n++;
	}
	must(roce_mem_forget(r->client, NULL, 0), "roce_mem_forget");
	printf("done %ld\n", n);
	return 0;
}
