# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""fabric_train.py --backend=NAME: a small net by Lightning Fabric, started by torchrun."""
import argparse

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
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
    fabric = Fabric(accelerator="cpu", devices=2, num_nodes=2,
                    strategy=DDPStrategy(process_group_backend=backend))
    fabric.launch()
    fabric.seed_everything(5, verbose=False)
    net = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.5))
    loader = fabric.setup_dataloaders(DataLoader(data(), batch_size=32, shuffle=True))
    for epoch in range(1, 6):
        losses = []
        loader.sampler.set_epoch(epoch)
        for points, sides in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(points), sides)
            fabric.backward(loss)
            optimizer.step()
            losses.append(loss.detach())
        everyones = fabric.all_gather(torch.stack(losses))
        if fabric.global_rank == 0:
            print(f"epoch {epoch}  loss {everyones.mean().item():.6f}", flush=True)
    total = fabric.all_reduce(torch.tensor(float(fabric.global_rank)), reduce_op="sum")
    assert total.item() == 6.0, total
    name = torch.distributed.get_backend()
    assert name == backend, name
    fabric.barrier()
    if fabric.global_rank == 0:
        print(f"last loss {everyones[..., -1].mean().item():.6f}", flush=True)


main()
