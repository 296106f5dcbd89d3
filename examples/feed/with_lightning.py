"""A LightningModule on batches of `vx.Feed`; Lightning starts the ranks.

python with_lightning.py DATASET 2
"""

import sys
from collections.abc import Iterator
from typing import Any

import lightning as L
import torch

import voxelocity as vx
from voxelocity.step import build_network


class Segmentation(L.LightningModule):
    """A network of the plan, trained with cross-entropy."""

    def __init__(self, dataset: str) -> None:
        super().__init__()
        self.cases = vx.open(dataset)
        # Nothing is measured, so that all ranks have the same plan.
        self.plan = vx.plan(self.cases, overrides={"data.batch_size": 4, "planner.measure": "never"}).plan
        self.network = build_network(
            self.plan.network, num_channels=len(self.cases.channels), num_classes=self.cases.num_classes, seed=0
        )

    def train_dataloader(self) -> Iterator[dict[str, torch.Tensor]]:
        # Each rank makes its share of a batch. The trainer moves tensors, so the feed leaves them on the CPU.
        with vx.Feed(
            self.cases.training(fold=0),
            self.plan.data,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
        ) as feed:
            for batch in feed:
                yield {"image": batch.image, "label": batch.label}

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        loss = torch.nn.functional.cross_entropy(self.network(batch["image"]), batch["label"].long())
        if self.trainer.is_global_zero and index % 10 == 9:
            print(f"step {index + 1}, loss {loss.item():.3f}", flush=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    dataset, num_ranks, *num_steps = sys.argv[1:]
    trainer = L.Trainer(
        accelerator="auto",
        devices=int(num_ranks),
        strategy="ddp" if int(num_ranks) > 1 else "auto",
        max_steps=int(num_steps[0]) if num_steps else 200,
        # A feed is in order already, and has no length.
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Segmentation(dataset))
