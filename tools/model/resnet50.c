/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * ResNet-50: implementation
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "tools/model/resnet50.h"

#include <assert.h>
#include <stdio.h>

#include "proto/base.h"

#define CLASSES 1000
#define EXPANSION 4 /* a block's output has this many times its width */

/* A square convolution and its batch norm. */
static void add_conv(struct tensor_list *c, const char *prefix, const char *conv, const char *norm,
		     size_t in, size_t out, size_t kernel)
{
	tensor_add(c, in * out * kernel * kernel, "%s%s.weight", prefix, conv);
	tensor_add(c, out, "%s%s.weight", prefix, norm);
	tensor_add(c, out, "%s%s.bias", prefix, norm);
}

void resnet50_tensors(struct tensor *tensors)
{
	static const struct {
		size_t width;
		unsigned int blocks;
	} stages[] = {{64, 3}, {128, 4}, {256, 6}, {512, 3}};
	struct tensor_list c = {.tensors = tensors};
	size_t in = 64;

	add_conv(&c, "", "conv1", "bn1", 3, in, 7);
	for (unsigned int s = 0; s < ARRAY_SIZE(stages); s++) {
		size_t width = stages[s].width, out = width * EXPANSION;

		for (unsigned int b = 0; b < stages[s].blocks; b++) {
			char prefix[24];

			snprintf(prefix, sizeof(prefix), "layer%u.%u.", s + 1, b);
			add_conv(&c, prefix, "conv1", "bn1", in, width, 1);
			add_conv(&c, prefix, "conv2", "bn2", width, width, 3);
			add_conv(&c, prefix, "conv3", "bn3", width, out, 1);
			if (b == 0) {
				add_conv(&c, prefix, "downsample.0", "downsample.1", in, out, 1);
			}
			in = out;
		}
	}
	tensor_add(&c, in * CLASSES, "fc.weight");
	tensor_add(&c, CLASSES, "fc.bias");
	assert(c.n == RESNET50_TENSORS);
	assert(tensor_total(&c) == RESNET50_PARAMETERS);
}
