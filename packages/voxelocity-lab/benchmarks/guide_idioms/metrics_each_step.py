"""Predictions of each training step are decollated, post-processed and scored on the CPU."""

import os
import time
from pathlib import Path

import torch
from monai.data import CacheDataset, DataLoader, decollate_batch
from monai.losses import DiceLoss
from monai.metrics import DiceMetric
from monai.networks.nets import UNet
from monai.transforms import (
    AsDiscrete,
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
    train_images = sorted((root / "imagesTr").glob("*.nii.gz"))[:10]
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
            RandSpatialCropd(keys=["image", "label"], roi_size=(80, 80, 80), random_size=False),
            RandFlipd(keys=["image", "label"], prob=0.5, spatial_axis=0),
            RandShiftIntensityd(keys=["image"], offsets=0.1, prob=0.5),
        ]
    )
    train_ds = CacheDataset(data=train_files, transform=train_transforms, cache_rate=1.0, num_workers=2)
    train_loader = DataLoader(train_ds, batch_size=2, shuffle=True, num_workers=0)
    post_pred = AsDiscrete(argmax=True, to_onehot=8)
    post_label = AsDiscrete(to_onehot=8)
    dice_metric = DiceMetric(include_background=False, reduction="mean")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = UNet(
        spatial_dims=3, in_channels=1, out_channels=8, channels=(4, 8, 16, 32), strides=(2, 2, 2), num_res_units=2,
        norm="batch",
    ).to(device)  # fmt: skip
    loss_function = DiceLoss(to_onehot_y=True, softmax=True)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    for epoch in range(int(os.environ.get("EPOCHS", "1000"))):
        epoch_start, epoch_loss, epoch_dice = time.time(), 0.0, 0.0
        model.train()
        for batch_data in train_loader:
            inputs, labels = batch_data["image"].to(device), batch_data["label"].to(device)
            optimizer.zero_grad()
            outputs = model(inputs)
            loss = loss_function(outputs, labels)
            loss.backward()
            optimizer.step()
            epoch_loss += loss.item()
            outputs_list = [post_pred(i) for i in decollate_batch(outputs)]
            labels_list = [post_label(i) for i in decollate_batch(labels)]
            epoch_dice += dice_metric(y_pred=outputs_list, y=labels_list).nanmean().item()
        print(f"epoch {epoch + 1}: dice {epoch_dice:.4f}, {time.time() - epoch_start:.3f} s", flush=True)


if __name__ == "__main__":
    main()
