/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * rocebench: latency and bandwidth of collectives over the rocecomm daemons
 *
 * Only the way of one rank through its rows is here; see rocebench(1).
 *
 * Thread: main      Owns: client and communicator      Locks: none
 */
#include <stdio.h>
#include <string.h>

#include "libclient/roceclient.h"
#include "proto/base.h"
#include "tools/rocebench/launch.h"
#include "tools/rocebench/measure.h"
#include "tools/rocebench/options.h"
#include "tools/rocebench/report.h"

static int failed(const char *what, int r)
{
	if (r == ROCE_ERR_NO_MEMORY && roce_last_error()[0] == '\0') {
		fprintf(stderr, "rocebench: %s: no memory: try smaller sizes or less in flight\n",
			what);
	} else {
		fprintf(stderr, "rocebench: %s: %s: %s\n", what, roce_status_name(r),
			roce_last_error());
	}
	return r == ROCE_ERR_NO_DAEMON ? ROCEBENCH_NO_DAEMON : ROCEBENCH_FAILED;
}

static size_t rows_of(const struct options *o, enum bench_id id)
{
	if (!o->chosen[id]) {
		return 0;
	}
	return bench_get(id)->one_row ? 1 : o->n_sizes;
}

static void progress(void *ctx, double share)
{
	report_progress(ctx, share);
}

static int measure_all(struct measure *m)
{
	const struct options *o = m->options;
	struct report report;
	size_t rows = 0, wrong = 0;

	for (unsigned int id = 0; id < BENCH_COUNT_; id++) {
		rows += rows_of(o, id);
	}
	report_init(&report, o, m->comm, rows);
	m->progress = progress;
	m->progress_ctx = &report;
	for (unsigned int id = 0; id < BENCH_COUNT_; id++) {
		for (size_t i = 0; i < rows_of(o, id); i++) {
			size_t bytes = bench_get(id)->one_row ? 0 : o->sizes[i];
			struct row row;
			int r;

			report_next(&report, id, bytes);
			r = measure_row(m, id, bytes, &row);
			if (r == MEASURE_REFUSED) {
				return ROCEBENCH_FAILED;
			}
			if (r != ROCE_OK) {
				return failed(bench_get(id)->name, r);
			}
			report_row(&report, &row);
			wrong += row.wrong;
		}
	}
	if (report_deinit(&report) < 0) {
		return ROCEBENCH_FAILED;
	}
	return wrong == 0 ? ROCEBENCH_OK : ROCEBENCH_WRONG;
}

/* The daemons choose; who measures one transport must not measure another by mistake. */
static int check_transport(const struct measure *m)
{
	const char *want = m->options->transport;

	if (!want || strcmp(want, report_transport(m->comm)) == 0) {
		return ROCEBENCH_OK;
	}
	if (roce_comm_rank(m->comm) == 0) {
		fprintf(stderr,
			"rocebench: --transport %s: the daemons use %s; keys transport and require "
			"of rocecommd.conf(5) choose, rocectl paths says why\n",
			want, roce_comm_path(m->comm));
	}
	return ROCEBENCH_FAILED;
}

static int measure_in(struct measure *m)
{
	const struct options *o = m->options;
	struct compute compute;
	int r = ROCEBENCH_FAILED;

	if (o->root_rank >= roce_comm_size(m->comm)) {
		fprintf(stderr, "rocebench: --root-rank %d: ranks are numbered 0 .. %d\n",
			o->root_rank, roce_comm_size(m->comm) - 1);
		return ROCEBENCH_USAGE;
	}
	if (compute_init(&compute, o->compute) < 0) {
		fprintf(stderr, "rocebench: --compute %u: no memory for the matrices\n",
			o->compute);
	} else {
		m->compute = &compute;
		r = measure_all(m);
	}
	compute_deinit(&compute);
	return r;
}

/* One rank: its place is in the environment. Return: exit status. */
static int rank_run(const struct options *o)
{
	struct roce_client_options client_options = {
		.size = sizeof(client_options), .name = "rocebench", .autostart = 1};
	struct roce_comm_options comm_options = {.size = sizeof(comm_options), .name = "rocebench"};
	struct measure m = {.options = o};
	int r;

	r = roce_connect(o->socket, &client_options, &m.client);
	if (r != ROCE_OK) {
		return failed("no connection", r);
	}
	r = roce_comm_init_env(m.client, &comm_options, &m.comm);
	if (r != ROCE_OK) {
		r = failed("no communicator", r);
		roce_disconnect(m.client);
		return r;
	}
	r = check_transport(&m);
	if (r == ROCEBENCH_OK) {
		r = measure_in(&m);
	}
	/* All are done before the first leaves; after a failure there is nobody to wait for. */
	if (r == ROCEBENCH_OK || r == ROCEBENCH_WRONG) {
		roce_barrier(m.comm);
	}
	roce_comm_destroy(m.comm);
	roce_disconnect(m.client);
	return r;
}

int main(int argc, char **argv)
{
	struct options options;
	int status;

	if (options_parse(argc, argv, &options, &status) < 0) {
		return status;
	}
	return options.launch ? launch(&options, rank_run) : rank_run(&options);
}
