"""Lightning: histograms of all weights and gradients go to TensorBoard after each backward pass."""

import os
import tempfile
import time
import warnings
from pathlib import Path

import lightning as L
import nibabel as nib
import numpy as np
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from monai.losses import DiceCELoss
from monai.networks.nets import UNet
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore", message=".*does not have many workers.*")


class HippocampusData(L.LightningDataModule):
    """All crops in memory."""

    def setup(self, stage: str) -> None:
        root = Path(os.environ["VOXELOCITY_DATA"]) / "hippocampus"
        images, labels = [], []
        for path in sorted((root / "imagesTr").glob("*.nii.gz"))[:128]:
            image = nib.load(path).get_fdata(dtype=np.float32)
            label = nib.load(root / "labelsTr" / path.name.replace("_0000", "")).get_fdata(dtype=np.float32)
            padding = [(0, max(0, 32 - n)) for n in image.shape]
            images.append(np.pad((image - image.mean()) / image.std(), padding)[None, :32, :32, :32])
            labels.append(np.pad(label, padding)[None, :32, :32, :32])
        self.dataset = TensorDataset(torch.from_numpy(np.stack(images)), torch.from_numpy(np.stack(labels)))

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_size=8, shuffle=True)


class Segmenter(L.LightningModule):
    """A U-Net and its training."""

    def __init__(self) -> None:
        super().__init__()
        self.net = UNet(spatial_dims=3, in_channels=1, out_channels=3, channels=(16, 32, 64), strides=(2, 2))
        self.loss = DiceCELoss(to_onehot_y=True, softmax=True)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        image, label = batch
        loss = self.loss(self.net(image), label)
        self.log("train_loss", loss)
        return loss

    def on_after_backward(self) -> None:
        if os.environ.get("CURED") == "1" and self.global_step % 50:
            return
        for name, parameter in self.net.named_parameters():
            self.logger.experiment.add_histogram(f"weights/{name}", parameter, self.global_step)
            self.logger.experiment.add_histogram(f"gradients/{name}", parameter.grad, self.global_step)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-3)

    def on_train_epoch_start(self) -> None:
        self.started = time.time()

    def on_train_epoch_end(self) -> None:
        loss = self.trainer.callback_metrics["train_loss"]
        print(f"epoch {self.current_epoch + 1}: loss {loss:.4f}, {time.time() - self.started:.3f} s", flush=True)


if __name__ == "__main__":
    L.seed_everything(0)
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            max_epochs=int(os.environ.get("EPOCHS", "1000")),
            logger=TensorBoardLogger(folder, name="hippocampus"),
            log_every_n_steps=10,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
        )
        trainer.fit(Segmenter(), datamodule=HippocampusData())
