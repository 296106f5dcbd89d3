"""PyTorch-Ignite's trainer on batches of `vx.Feed`; `idist.Parallel` starts the ranks.

python with_ignite.py DATASET 2
"""

import sys
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events

import voxelocity as vx
from voxelocity.core.batch import Batch
from voxelocity.step import build_network


def train(local_rank: int, dataset: str, num_steps: int) -> None:
    cases = vx.open(dataset)
    size = idist.get_world_size()
    # Nothing is measured, so that all ranks have the same plan.
    plan = vx.plan(cases, overrides={"data.batch_size": 2 * size, "planner.measure": "never"}).plan
    network = build_network(plan.network, num_channels=len(cases.channels), num_classes=cases.num_classes, seed=0)
    network = idist.auto_model(network)
    optimizer = idist.auto_optim(torch.optim.AdamW(network.parameters(), lr=1e-3))

    def step(engine: Engine, batch: Batch) -> float:
        loss = torch.nn.functional.cross_entropy(network(batch.image), batch.label.long())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    trainer = Engine(step)

    @trainer.on(Events.ITERATION_COMPLETED(every=10))
    def show(engine: Any) -> None:
        if idist.get_rank() == 0:
            print(f"step {engine.state.iteration}, loss {engine.state.output:.3f}", flush=True)

    with vx.Feed(
        cases.training(fold=0), plan.data, device=idist.device(), rank=idist.get_rank(), world_size=size
    ) as feed:
        # A feed has no end, so the engine needs the length of an epoch.
        trainer.run(feed, max_epochs=1, epoch_length=num_steps)


if __name__ == "__main__":
    dataset, num_ranks, *num_steps = sys.argv[1:]
    with idist.Parallel(
        backend="nccl" if torch.cuda.is_available() else "gloo", nproc_per_node=int(num_ranks)
    ) as parallel:
        parallel.run(train, dataset, int(num_steps[0]) if num_steps else 200)
