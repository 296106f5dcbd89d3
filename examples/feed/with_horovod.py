"""Horovod's optimizer on batches of `vx.Feed`.

horovodrun -np 2 python with_horovod.py DATASET

Horovod 0.28.1, of 2023, is its last release. Torchrun with PyTorch's own DDP (`own_loop.py`) needs no further package.
"""

import sys

import horovod.torch as hvd
import torch

import voxelocity as vx
from voxelocity.step import build_network


def main(dataset: str, num_steps: int = 200) -> None:
    hvd.init()
    device = f"cuda:{hvd.local_rank()}" if torch.cuda.is_available() else "cpu"
    cases = vx.open(dataset)
    # Nothing is measured, so that all ranks have the same plan.
    plan = vx.plan(cases, overrides={"data.batch_size": 2 * hvd.size(), "planner.measure": "never"}).plan
    network = build_network(plan.network, num_channels=len(cases.channels), num_classes=cases.num_classes, seed=0)
    network.to(device)
    hvd.broadcast_parameters(network.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.AdamW(network.parameters(), lr=1e-3), named_parameters=network.named_parameters()
    )
    with vx.Feed(cases.training(fold=0), plan.data, device=device, rank=hvd.rank(), world_size=hvd.size()) as feed:
        for step in range(num_steps):
            batch = next(feed)
            loss = torch.nn.functional.cross_entropy(network(batch.image), batch.label.long())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if hvd.rank() == 0 and step % 10 == 9:
                print(f"step {step + 1}, loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
