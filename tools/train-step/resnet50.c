/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * ResNet-50: implementation
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "tools/train-step/resnet50.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "proto/base.h"

#define CLASSES 1000
#define EXPANSION 4 /* a block's output has this many times its width */

struct cursor {
	struct tensor *tensors;
	size_t n;
};

static void add(struct cursor *c, size_t count, const char *format, ...) attr_printf(3, 4);
static void add(struct cursor *c, size_t count, const char *format, ...)
{
	struct tensor *t;
	va_list ap;

	assert(c->n < RESNET50_TENSORS);
	t = &c->tensors[c->n++];
	va_start(ap, format);
	vsnprintf(t->name, sizeof(t->name), format, ap);
	va_end(ap);
	t->count = count;
}

/* A square convolution and its batch norm. */
static void add_conv(struct cursor *c, const char *prefix, const char *conv, const char *norm,
		     size_t in, size_t out, size_t kernel)
{
	add(c, in * out * kernel * kernel, "%s%s.weight", prefix, conv);
	add(c, out, "%s%s.weight", prefix, norm);
	add(c, out, "%s%s.bias", prefix, norm);
}

void resnet50_tensors(struct tensor *tensors)
{
	static const struct {
		size_t width;
		unsigned int blocks;
	} stages[] = {{64, 3}, {128, 4}, {256, 6}, {512, 3}};
	struct cursor c = {.tensors = tensors};
	size_t in = 64, total = 0;

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
	add(&c, in * CLASSES, "fc.weight");
	add(&c, CLASSES, "fc.bias");

	for (size_t i = 0; i < c.n; i++) {
		total += tensors[i].count;
	}
	assert(c.n == RESNET50_TENSORS);
	assert(total == RESNET50_PARAMETERS);
}
