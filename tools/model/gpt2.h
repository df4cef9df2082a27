/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * GPT-2 small: the sizes of its parameter tensors, in the order in which PyTorch registers them
 *
 * Computed from the architecture: embeddings of words and places, twelve blocks of attention and
 * perceptron, a last norm. The output layer is the word embedding, which is counted once.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef MODEL_GPT2_H
#define MODEL_GPT2_H

#include "tools/model/tensor.h"

#define GPT2_TENSORS 148
#define GPT2_PARAMETERS 124439808u

/* Fills GPT2_TENSORS entries. */
void gpt2_tensors(struct tensor *tensors);

#endif
