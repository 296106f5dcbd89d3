"""MONAI's `SupervisedTrainer` with its `CheckpointSaver`, which saves at intervals, at the end and at an error.

Ends by itself after STEPS steps, if that is set.
"""

import os
from pathlib import Path

import torch
from ignite.engine import Events
from monai.data import DataLoader, Dataset
from monai.engines import SupervisedTrainer
from monai.handlers import CheckpointSaver, LrScheduleHandler
from monai.transforms import Compose, Lambdad, RandGaussianNoised
from monai.utils import set_determinism
from torch import nn


def main():
    if Path("pyproject.toml").exists():
        raise SystemExit("run this in a folder of its own: it leaves checkpoints there")
    set_determinism(seed=0)
    items = [{"image": index, "label": index % 2} for index in range(64)]
    transforms = Compose(
        [Lambdad("image", lambda index: torch.full((1, 16, 16, 16), index / 64)), RandGaussianNoised("image", prob=0.5)]
    )
    net = nn.Sequential(nn.Conv3d(1, 8, 3), nn.BatchNorm3d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14**3, 2))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    trainer = SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=10_000,
        train_data_loader=DataLoader(Dataset(items, transforms), batch_size=2, shuffle=True),
        network=net,
        optimizer=optimizer,
        loss_function=nn.CrossEntropyLoss(),
        train_handlers=[LrScheduleHandler(torch.optim.lr_scheduler.StepLR(optimizer, 5), print_lr=False)],
    )
    saver = CheckpointSaver(
        "checkpoints",
        {"net": net, "optimizer": optimizer, "trainer": trainer},
        save_interval=50,
        epoch_level=False,
        n_saved=None,
        save_final=True,
        final_filename="last.pt",
    )
    saver.attach(trainer)
    if "STEPS" in os.environ:
        trainer.add_event_handler(Events.ITERATION_COMPLETED(once=int(os.environ["STEPS"])), trainer.terminate)
    trainer.run()


main()
