# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""accelerate_train.py --backend=NAME: a small net by Hugging Face Accelerate, started by torchrun.

On CPUs Accelerate sets up Gloo or MPI itself; it takes any group that is there already.
"""
import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, set_seed
from torch.utils.data import DataLoader, TensorDataset


def data():
    """Points, and on which side of a curve they lie."""
    points = torch.rand(512, 2, generator=torch.Generator().manual_seed(3)) * 2 - 1
    return TensorDataset(points, (points[:, 1] > points[:, 0] ** 2).long())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend")
    backend = parser.parse_args().backend
    torch.set_num_threads(1)
    torch.distributed.init_process_group(backend)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(5)
    net = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
    model, optimizer, loader = accelerator.prepare(
        net, torch.optim.SGD(net.parameters(), lr=0.5),
        DataLoader(data(), batch_size=16, shuffle=True))
    for epoch in range(1, 6):
        losses = []
        for points, sides in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(points), sides)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
        everyones = accelerator.gather(torch.stack(losses))
        if accelerator.is_main_process:
            print(f"epoch {epoch}  loss {everyones.mean().item():.6f}", flush=True)
    ranks = gather_object([accelerator.process_index])
    assert ranks == [0, 1, 2, 3], ranks
    assert torch.distributed.get_backend() == backend
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        print(f"last loss {everyones[-1].item():.6f}", flush=True)
    accelerator.end_training()


main()
