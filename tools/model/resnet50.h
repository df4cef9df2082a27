/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * ResNet-50: the sizes of its parameter tensors, in the order in which PyTorch registers them
 *
 * Computed from the architecture, not typed in: stem, four stages of bottleneck blocks, classifier.
 * A convolution has no bias; each is followed by a batch norm with weight and bias.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef MODEL_RESNET50_H
#define MODEL_RESNET50_H

#include "tools/model/tensor.h"

#define RESNET50_TENSORS 161
#define RESNET50_PARAMETERS 25557032u

/* Fills RESNET50_TENSORS entries. */
void resnet50_tensors(struct tensor *tensors);

#endif
