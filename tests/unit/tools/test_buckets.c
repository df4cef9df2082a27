/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of the demo's tables: ResNet-50's tensors, DDP's buckets, the checker of averages
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <math.h>

#include "tools/model/buckets.h"
#include "tools/model/resnet50.h"
#include "tools/train-step/values.h"

Test(resnet50, tensors)
{
	struct tensor t[RESNET50_TENSORS];
	size_t total = 0;

	resnet50_tensors(t);
	for (size_t i = 0; i < RESNET50_TENSORS; i++) {
		total += t[i].count;
	}
	cr_assert_eq(total, 25557032);
	cr_assert_str_eq(t[0].name, "conv1.weight");
	cr_assert_eq(t[0].count, 64 * 3 * 7 * 7);
	cr_assert_str_eq(t[160].name, "fc.bias");
	cr_assert_eq(t[160].count, 1000);
	cr_assert_str_eq(t[12].name, "layer1.0.downsample.0.weight");
	cr_assert_eq(t[12].count, 64 * 256);
}

Test(buckets, limits)
{
	/* 0.5 MiB, 0.5 MiB: closes the first; 24 MiB, 2 MiB: closes the second; the rest. */
	size_t counts[] = {1 << 17, 1 << 17, 6 << 20, 1 << 19, 5};
	struct bucket b[BUCKETS_MAX];

	cr_assert_eq(buckets_assign(counts, 5, b), 3);
	cr_assert_eq(b[0].tensors, 2);
	cr_assert_eq(b[0].count, 1 << 18);
	cr_assert_eq(b[1].first, 2);
	cr_assert_eq(b[1].base, 1 << 18);
	cr_assert_eq(b[1].tensors, 2);
	cr_assert_eq(b[2].first, 4);
	cr_assert_eq(b[2].count, 5);
	cr_assert_eq(buckets_assign(counts, 0, b), 0);
}

static size_t check(const struct values *v, const float *got, size_t n, size_t *where)
{
	double want;

	return values_check(v, 100, n, got, where, &want);
}

Test(values, exact_average_and_every_wrong_bit)
{
	struct values v = {.size = 8, .step = 3, .exact = true};
	float sum[50] = {0}, one[50], got[50];
	size_t where = 0;

	for (unsigned int r = 0; r < v.size; r++) {
		values_fill(&v, r, 100, 50, one);
		for (size_t i = 0; i < 50; i++) {
			sum[i] += one[i];
		}
	}
	for (size_t i = 0; i < 50; i++) {
		got[i] = sum[i] / 8;
	}
	cr_assert_eq(check(&v, got, 50, &where), 0);
	got[17] = got[18];
	cr_assert_eq(check(&v, got, 50, &where), 1);
	cr_assert_eq(where, 17);
}

Test(values, arbitrary_within_rounding)
{
	struct values v = {.size = 3, .step = 1, .exact = false};
	float a[50], b[50], c[50];
	size_t where = 0;

	values_fill(&v, 0, 100, 50, a);
	values_fill(&v, 1, 100, 50, b);
	values_fill(&v, 2, 100, 50, c);
	for (size_t i = 0; i < 50; i++) {
		a[i] = (a[i] + b[i] + c[i]) / 3;
	}
	cr_assert_eq(check(&v, a, 50, &where), 0);
	a[3] *= 1.00001f;
	a[4] = (float)NAN;
	cr_assert_eq(check(&v, a, 50, &where), 2);
	cr_assert_eq(where, 3);
}
