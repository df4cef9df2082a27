# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""torchtnt_train.py --backend=NAME: a small net by TorchTNT, started by torchrun."""
import argparse
import warnings

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torchtnt.framework.auto_unit import AutoUnit
from torchtnt.framework.train import train
from torchtnt.utils import init_from_env, seed
from torchtnt.utils.distributed import all_gather_tensors, get_global_rank, sync_bool


def data():
    """Points, and on which side of a curve they lie."""
    points = torch.rand(512, 2, generator=torch.Generator().manual_seed(3)) * 2 - 1
    return TensorDataset(points, (points[:, 1] > points[:, 0] ** 2).long())


class Sides(AutoUnit):
    """Learns the sides; DistributedDataParallel is AutoUnit's."""

    def __init__(self, net, device):
        super().__init__(module=net, device=device, strategy="ddp", gradient_accumulation_steps=2)
        self.losses, self.last = [], None

    def compute_loss(self, state, batch):
        points, sides = batch
        outputs = self.module(points)
        return torch.nn.functional.cross_entropy(outputs, sides), outputs

    def configure_optimizers_and_lr_scheduler(self, module):
        return torch.optim.SGD(module.parameters(), lr=0.5), None

    def on_train_step_end(self, state, data, step, results):
        self.losses.append(results.loss.detach())

    def on_train_epoch_end(self, state):
        super().on_train_epoch_end(state)
        everyones = torch.cat(all_gather_tensors(torch.stack(self.losses)))
        self.losses = []
        if get_global_rank() == 0:
            epoch = self.train_progress.num_epochs_completed
            print(f"epoch {epoch}  loss {everyones.mean().item():.6f}", flush=True)
            self.last = everyones[-1].item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend")
    backend = parser.parse_args().backend
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    device = init_from_env(device_type="cpu", pg_backend=backend)
    assert torch.distributed.get_backend() == backend
    seed(5)
    net = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
    unit = Sides(net, device)
    points = data()
    train(unit, DataLoader(points, batch_size=16, sampler=DistributedSampler(points, seed=5)),
          max_epochs=5)
    assert sync_bool(get_global_rank() == 2, coherence_mode="any")
    if get_global_rank() == 0:
        print(f"last loss {unit.last:.6f}", flush=True)


main()
