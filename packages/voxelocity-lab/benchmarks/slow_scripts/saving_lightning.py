"""Lightning's `Trainer` with `ModelCheckpoint`, a callback that saves at an error, and a save after `fit`.

Ends by itself after STEPS steps, if that is set.
"""

import os
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Scans(Dataset):
    """Noise in place of scans."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.randn(1, 16, 16, 16), index % 2


class Model(pl.LightningModule):
    """One convolution and a classifier."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv3d(1, 8, 3), nn.BatchNorm3d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14**3, 2)
        )

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), 1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 5)]


class SaveAtAnError(Callback):
    """Saves once more where the training fails."""

    def on_exception(self, trainer, module, exception):
        trainer.save_checkpoint("checkpoints/last.pt")


def main():
    if Path("pyproject.toml").exists():
        raise SystemExit("run this in a folder of its own: it leaves checkpoints there")
    pl.seed_everything(0)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=-1,
        max_steps=int(os.environ.get("STEPS", "-1")),
        logger=False,
        enable_progress_bar=False,
        callbacks=[
            ModelCheckpoint("checkpoints", filename="{step}", every_n_train_steps=50, save_top_k=-1),
            SaveAtAnError(),
        ],
    )
    trainer.fit(Model(), DataLoader(Scans(), batch_size=2, shuffle=True))
    trainer.save_checkpoint("checkpoints/last.pt")


main()
