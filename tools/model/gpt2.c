/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * GPT-2 small: implementation
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "tools/model/gpt2.h"

#include <assert.h>

#define VOCABULARY 50257
#define PLACES 1024
#define WIDTH 768
#define BLOCKS 12
#define PERCEPTRON (4 * WIDTH)

/* A matrix, or the gains of a norm, and a bias for each of its outputs. */
static void add_layer(struct tensor_list *list, unsigned int block, const char *name, size_t in,
		      size_t out)
{
	tensor_add(list, in * out, "h.%u.%s.weight", block, name);
	tensor_add(list, out, "h.%u.%s.bias", block, name);
}

void gpt2_tensors(struct tensor *tensors)
{
	struct tensor_list list = {.tensors = tensors};

	tensor_add(&list, (size_t)VOCABULARY * WIDTH, "wte.weight");
	tensor_add(&list, (size_t)PLACES * WIDTH, "wpe.weight");
	for (unsigned int b = 0; b < BLOCKS; b++) {
		add_layer(&list, b, "ln_1", 1, WIDTH);
		add_layer(&list, b, "attn.c_attn", WIDTH, 3 * WIDTH);
		add_layer(&list, b, "attn.c_proj", WIDTH, WIDTH);
		add_layer(&list, b, "ln_2", 1, WIDTH);
		add_layer(&list, b, "mlp.c_fc", WIDTH, PERCEPTRON);
		add_layer(&list, b, "mlp.c_proj", PERCEPTRON, WIDTH);
	}
	tensor_add(&list, WIDTH, "ln_f.weight");
	tensor_add(&list, WIDTH, "ln_f.bias");
	assert(list.n == GPT2_TENSORS);
	assert(tensor_total(&list) == GPT2_PARAMETERS);
}
