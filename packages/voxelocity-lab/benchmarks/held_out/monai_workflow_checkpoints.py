"""MONAI's SupervisedTrainer; a checkpoint is saved after each iteration, in case the job is killed."""

import os
import tempfile
import time
from pathlib import Path

import torch
from ignite.engine import Engine, Events
from monai.data import CacheDataset, DataLoader
from monai.engines import SupervisedTrainer
from monai.handlers import CheckpointSaver
from monai.inferers import SimpleInferer
from monai.losses import DiceCELoss
from monai.networks.nets import UNet
from monai.transforms import (
    CenterSpatialCropd,
    Compose,
    EnsureChannelFirstd,
    LoadImaged,
    NormalizeIntensityd,
    RandFlipd,
    RandGaussianNoised,
    SpatialPadd,
)


def main(folder: str) -> None:
    torch.manual_seed(0)
    keys = ["image", "label"]
    root = Path(os.environ["VOXELOCITY_DATA"]) / "hippocampus"
    images = sorted((root / "imagesTr").glob("*.nii.gz"))[:48]
    data = [{"image": str(p), "label": str(root / "labelsTr" / p.name.replace("_0000", ""))} for p in images]
    transforms = Compose(
        [
            LoadImaged(keys=keys),
            EnsureChannelFirstd(keys=keys),
            NormalizeIntensityd(keys=["image"]),
            SpatialPadd(keys=keys, spatial_size=(32, 32, 32)),
            CenterSpatialCropd(keys=keys, roi_size=(32, 32, 32)),
            RandFlipd(keys=keys, prob=0.5, spatial_axis=1),
            RandGaussianNoised(keys=["image"], prob=0.2),
        ]
    )
    train_loader = DataLoader(CacheDataset(data, transforms, progress=False), batch_size=2, shuffle=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = UNet(
        spatial_dims=3, in_channels=1, out_channels=3, channels=(8, 16, 32, 64, 128, 320), strides=(2, 2, 2, 2, 1),
        num_res_units=2,
    ).to(device)  # fmt: skip
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    if os.environ.get("CURED") == "1":
        saver = CheckpointSaver(save_dir=folder, save_dict={"net": net, "opt": opt}, save_interval=1, n_saved=2)
    else:
        saver = CheckpointSaver(
            save_dir=folder, save_dict={"net": net, "opt": opt}, save_interval=1, epoch_level=False, n_saved=2
        )
    trainer = SupervisedTrainer(
        device=device,
        max_epochs=int(os.environ.get("EPOCHS", "1000")),
        train_data_loader=train_loader,
        network=net,
        optimizer=opt,
        loss_function=DiceCELoss(to_onehot_y=True, softmax=True),
        inferer=SimpleInferer(),
        train_handlers=[saver],
    )

    started = 0.0

    @trainer.on(Events.EPOCH_STARTED)
    def start(engine: Engine) -> None:
        nonlocal started
        started = time.time()

    @trainer.on(Events.EPOCH_COMPLETED)
    def report(engine: Engine) -> None:
        loss = engine.state.output[0]["loss"]
        print(f"epoch {engine.state.epoch}: loss {loss:.4f}, {time.time() - started:.3f} s", flush=True)

    trainer.run()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as runs:
        main(runs)
