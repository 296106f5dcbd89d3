"""`ThreadDataLoader` with workers over cached items: the fast training guide sets `num_workers=0` here."""

import os
import time
from pathlib import Path

import torch
from monai.data import CacheDataset, ThreadDataLoader
from monai.losses import DiceLoss
from monai.networks.nets import UNet
from monai.transforms import (
    Compose,
    CropForegroundd,
    EnsureChannelFirstd,
    LoadImaged,
    Orientationd,
    RandFlipd,
    RandShiftIntensityd,
    RandSpatialCropd,
    ScaleIntensityRanged,
    Spacingd,
)
from monai.utils import set_determinism


def main() -> None:
    set_determinism(seed=0)
    root = Path(os.environ["VOXELOCITY_DATA"]) / "openkbp_headneck_ct"
    train_images = sorted((root / "imagesTr").glob("*.nii.gz"))[:12]
    train_files = [
        {"image": str(path), "label": str(root / "labelsTr" / path.name.replace("_0000", ""))} for path in train_images
    ]
    train_transforms = Compose(
        [
            LoadImaged(keys=["image", "label"]),
            EnsureChannelFirstd(keys=["image", "label"]),
            Orientationd(keys=["image", "label"], axcodes="RAS", labels=None),
            Spacingd(keys=["image", "label"], pixdim=(3.0, 3.0, 3.0), mode=("bilinear", "nearest")),
            ScaleIntensityRanged(keys=["image"], a_min=-200, a_max=300, b_min=0.0, b_max=1.0, clip=True),
            CropForegroundd(keys=["image", "label"], source_key="image"),
            RandSpatialCropd(keys=["image", "label"], roi_size=(64, 64, 64), random_size=False),
            RandFlipd(keys=["image", "label"], prob=0.5, spatial_axis=0),
            RandShiftIntensityd(keys=["image"], offsets=0.1, prob=0.5),
        ]
    )
    train_ds = CacheDataset(data=train_files, transform=train_transforms, cache_rate=1.0, num_workers=2)
    train_loader = ThreadDataLoader(train_ds, num_workers=4, batch_size=2, shuffle=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = UNet(
        spatial_dims=3, in_channels=1, out_channels=8, channels=(8, 16, 32, 64), strides=(2, 2, 2), num_res_units=2,
        norm="batch",
    ).to(device)  # fmt: skip
    loss_function = DiceLoss(to_onehot_y=True, softmax=True)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    for epoch in range(int(os.environ.get("EPOCHS", "1000"))):
        epoch_start, epoch_loss = time.time(), 0.0
        model.train()
        for batch_data in train_loader:
            inputs, labels = batch_data["image"].to(device), batch_data["label"].to(device)
            optimizer.zero_grad()
            outputs = model(inputs)
            loss = loss_function(outputs, labels)
            loss.backward()
            optimizer.step()
            epoch_loss += loss.item()
        print(
            f"epoch {epoch + 1}: average loss {epoch_loss / len(train_loader):.4f}, {time.time() - epoch_start:.3f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
