"""MONAI's SupervisedTrainer on batches of `vx.Feed`; torchrun starts the ranks.

python with_monai.py DATASET
torchrun --nproc-per-node 2 with_monai.py DATASET
"""

import os
import sys
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from monai.engines import SupervisedTrainer
from monai.losses import DiceCELoss
from monai.networks.nets import UNet

import voxelocity as vx


def dictionaries(feed: Iterable[vx.Feed]) -> Iterator[dict[str, torch.Tensor]]:
    """Batches in the form that MONAI's engines expect: labels with a channel."""
    for batch in feed:
        yield {"image": batch.image, "label": batch.label.unsqueeze(1)}


def main(dataset: str, num_steps: int = 200) -> None:
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else "cpu"
    if size > 1:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    cases = vx.open(dataset)
    # Nothing is measured, so that all ranks have the same plan.
    plan = vx.plan(cases, overrides={"data.batch_size": 2 * size, "planner.measure": "never"}).plan
    torch.manual_seed(0)
    network = UNet(
        spatial_dims=3, in_channels=len(cases.channels), out_channels=cases.num_classes, channels=(16, 32, 64),
        strides=(2, 2), num_res_units=1,
    ).to(device)  # fmt: skip
    if size > 1:
        network = torch.nn.parallel.DistributedDataParallel(network)
    with vx.Feed(cases.training(fold=0), plan.data, device=device, rank=rank, world_size=size) as feed:
        trainer = SupervisedTrainer(
            device=torch.device(device),
            max_epochs=num_steps // 10,
            train_data_loader=dictionaries(feed),
            # A feed has no end, so the engine needs the length of an epoch.
            epoch_length=10,
            network=network,
            optimizer=torch.optim.AdamW(network.parameters(), lr=1e-3),
            loss_function=DiceCELoss(softmax=True, to_onehot_y=True),
        )

        @trainer.on("EPOCH_COMPLETED")
        def show(engine: SupervisedTrainer) -> None:
            if rank == 0:
                loss = engine.state.output[0]["loss"]
                print(f"step {engine.state.iteration}, loss {float(loss):.3f}", flush=True)

        trainer.run()
    if size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
