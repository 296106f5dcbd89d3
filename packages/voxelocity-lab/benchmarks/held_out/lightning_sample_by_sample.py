"""Lightning: small patches around the hippocampus; `training_step` calls the network for each patch of the batch."""

import os
import time
import warnings
from pathlib import Path

import lightning as L
import nibabel as nib
import numpy as np
import torch
from monai.losses import DiceLoss
from monai.networks.nets import UNet
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore", message=".*does not have many workers.*")


class Patches(Dataset):
    """Random patches of crops that are kept in memory."""

    def __init__(self, size: int = 16) -> None:
        root = Path(os.environ["VOXELOCITY_DATA"]) / "hippocampus"
        self.size, self.cases = size, []
        for path in sorted((root / "imagesTr").glob("*.nii.gz"))[:160]:
            image = nib.load(path).get_fdata(dtype=np.float32)
            label = nib.load(root / "labelsTr" / path.name.replace("_0000", "")).get_fdata(dtype=np.float32)
            self.cases.append(((image - image.mean()) / image.std(), label))

    def __len__(self) -> int:
        return 2 * len(self.cases)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image, label = self.cases[index % len(self.cases)]
        where = tuple(slice(s, s + self.size) for s in (torch.randint(n - self.size, ()).item() for n in image.shape))
        return torch.from_numpy(image[where].copy())[None], torch.from_numpy(label[where].copy())[None]


class Segmenter(L.LightningModule):
    """A U-Net and its training; the Dice of each patch counts by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.net = UNet(
            spatial_dims=3, in_channels=1, out_channels=3, channels=(16, 32, 64), strides=(2, 2), num_res_units=2
        )
        self.loss = DiceLoss(to_onehot_y=True, softmax=True)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.net(image)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        images, labels = batch
        if os.environ.get("CURED") == "1":
            loss = self.loss(self(images), labels)
        else:
            losses = []
            for image, label in zip(images, labels, strict=True):
                output = self(image.unsqueeze(0))
                losses.append(self.loss(output, label.unsqueeze(0)))
            loss = torch.stack(losses).mean()
        self.log("loss", loss, on_step=False, on_epoch=True, batch_size=len(images))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 1e-3)


class EpochTimer(L.Callback):
    """Prints what an epoch took."""

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.started = time.time()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        loss = trainer.callback_metrics["loss"]
        print(f"epoch {trainer.current_epoch + 1}: loss {loss:.4f}, {time.time() - self.started:.3f} s", flush=True)


if __name__ == "__main__":
    L.seed_everything(0)
    trainer = L.Trainer(
        max_epochs=int(os.environ.get("EPOCHS", "1000")),
        logger=False,
        callbacks=[EpochTimer()],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(Segmenter(), DataLoader(Patches(), batch_size=16, shuffle=True))
