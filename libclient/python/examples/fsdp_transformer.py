#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Trains a small transformer whose parameters are sharded over all ranks (FSDP2, fully_shard).

    torchrun --nproc-per-node 4 fsdp_transformer.py --backend roce
    torchrun --nproc-per-node 4 fsdp_transformer.py --backend gloo

The task needs no data: the second half of each sequence repeats the first, backwards. Seeds are
fixed. Needs PyTorch 2.7 or later: before, FSDP2 does not run on CPUs, whatever the backend.
"""
import argparse
import json

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

LETTERS = 16
LENGTH = 16  # of a sequence; its second half can be told from the first


class Block(nn.Module):
    """Attention to what came before, then a linear layer of four times the width."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.join = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.mix(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.join(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Letters in, the next letter out."""

    def __init__(self, width=64, heads=4, depth=2):
        super().__init__()
        self.letters = nn.Embedding(LETTERS, width)
        self.places = nn.Parameter(torch.zeros(LENGTH - 1, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.out = nn.Linear(width, LETTERS)

    def forward(self, letters):
        x = self.letters(letters) + self.places
        for block in self.blocks:
            x = block(x)
        return self.out(x) * 1.0  # not a view: FSDP hooks on what comes out


def sequences(count, seed):
    generator = torch.Generator().manual_seed(seed)
    half = torch.randint(LETTERS, (count, LENGTH // 2), generator=generator)
    return torch.cat([half, half.flip(1)], dim=1)


def step(model, optimizer, batch, seed):
    """One step on this rank's sequences; the loss over what can be known, mean of all ranks."""
    data = sequences(batch, seed)
    logits = model(data[:, :-1])[:, LENGTH // 2 - 1:]
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), data[:, LENGTH // 2:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total = loss.detach().double()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def train(options):
    """The losses. The model, which holds the groups, ends with this function."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = Transformer()
    mesh = init_device_mesh("cpu", (size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for number in range(1, options.steps + 1):
        losses.append(step(model, optimizer, options.batch, number * size + rank))
        if rank == 0 and number % 10 == 0:
            print(f"step {number}  loss {losses[-1]:.6f}", flush=True)
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--backend", choices=("roce", "gloo"), default="roce")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=16, help="sequences a rank")
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
