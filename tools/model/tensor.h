/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tensor: a parameter of a model, by name and size
 *
 * A model is a list of them, computed from its architecture, in the order in which PyTorch
 * registers them; their gradients come in the reverse one.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef MODEL_TENSOR_H
#define MODEL_TENSOR_H

#include <stddef.h>

#define TENSORS_MAX 161 /* of any model here */

struct tensor {
	char name[40];
	size_t count; /* elements */
};

struct tensor_list {
	struct tensor *tensors; /* room for TENSORS_MAX */
	size_t n;
};

void tensor_add(struct tensor_list *list, size_t count, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Elements of all. */
size_t tensor_total(const struct tensor_list *list);

#endif
