#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Trains a small convolutional net on handwritten digits with DistributedDataParallel.

    torchrun --nproc-per-node 4 ddp_digits.py --backend roce
    torchrun --nproc-per-node 4 ddp_digits.py --backend gloo

The digits are those of scikit-learn's package. Every rank has its share of each batch; seeds are
fixed, so that two runs print the same losses, whatever the backend. What may differ between two
backends is the order in which gradients are summed: a unit in the last place.
"""
import argparse
import json

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TEST_SHARE = 5  # every fifth digit is for the test


class Net(nn.Module):
    """Two convolutions and two linear layers: 8 x 8 grey values to ten digits."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images):
        return self.head(self.features(images))


def digits():
    """Images and labels to train with, and those to test with."""
    from sklearn.datasets import load_digits  # pylint: disable=import-outside-toplevel
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target, dtype=torch.int64)
    test = torch.arange(len(labels)) % TEST_SHARE == 0
    return (images[~test], labels[~test]), (images[test], labels[test])


def mean_over_ranks(value):
    total = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def train_epoch(model, optimizer, data, batch, epoch):
    """One pass over the digits in an order that all ranks know; the mean loss of all ranks."""
    images, labels = data
    rank, size = dist.get_rank(), dist.get_world_size()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
    losses = []
    for first in range(0, len(labels) - batch + 1, batch):
        mine = order[first:first + batch][rank::size]
        optimizer.zero_grad(set_to_none=False)
        loss = nn.functional.cross_entropy(model(images[mine]), labels[mine])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return mean_over_ranks(sum(losses) / len(losses))


def accuracy(model, test):
    """Each rank looks at its share of the test."""
    images, labels = test
    rank, size = dist.get_rank(), dist.get_world_size()
    model.eval()
    with torch.no_grad():
        right = (model(images[rank::size]).argmax(1) == labels[rank::size]).sum()
    model.train()
    dist.all_reduce(right)
    return right.item() / len(labels)


def train(options):
    """Trains and tests; the losses. The model, which holds the group, ends with this function."""
    torch.manual_seed(1)
    data, test = digits()
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for epoch in range(1, options.epochs + 1):
        losses.append(train_epoch(model, optimizer, data, options.batch, epoch))
        if dist.get_rank() == 0:
            print(f"epoch {epoch}  loss {losses[-1]:.6f}", flush=True)
    right = accuracy(model, test)
    if dist.get_rank() == 0:
        print(f"right {100 * right:.2f} %", flush=True)
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--backend", choices=("roce", "gloo"), default="roce")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=128, help="of all ranks together")
    parser.add_argument("--losses", metavar="FILE", help="rank 0 writes the losses there, as JSON")
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group(options.backend)
    losses = train(options)
    if dist.get_rank() == 0 and options.losses:
        with open(options.losses, "w", encoding="utf-8") as f:
            json.dump(losses, f)
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()


main()
