"""Your own loop on batches of `vx.Feed`, alone or on several ranks, with all else of PyTorch.

python own_loop.py DATASET
torchrun --nproc-per-node 2 own_loop.py DATASET
"""

import sys

import torch

import voxelocity as vx
from voxelocity.parallel import join_world
from voxelocity.step import build_loss, build_network


def main(dataset: str, num_steps: int = 200) -> None:
    cases = vx.open(dataset)
    with join_world(uses_gpu=torch.cuda.is_available()) as world:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        # Rank 0 plans, as ranks may differ in what they measure. `plan` is plain data: print it, change it, keep it.
        plan = world.run_on_leader(
            lambda: vx.plan(cases, fold=0, overrides={"data.batch_size": 2 * world.place.size}).plan
        )
        network = build_network(
            plan.network, num_channels=len(cases.channels), num_classes=cases.num_classes, seed=plan.seed
        ).to(device)
        network = world.wrap_network(network, bucket_mb=25.0)
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
        loss_function = build_loss(plan.loss, total=world.total)
        with vx.Feed(
            cases.training(fold=0), plan.data, device=device, rank=world.place.rank, world_size=world.place.size
        ) as feed:
            for step in range(num_steps):
                batch = next(feed)
                loss = loss_function(network(batch.image), batch.label)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if world.is_leader and step % 10 == 9:
                    print(f"step {step + 1}, loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
