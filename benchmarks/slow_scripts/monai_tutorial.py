"""A training in the style of MONAI's tutorials: Dataset, DataLoader, validation by sliding window every other epoch.

With CURED=1 items are kept after the last fixed transform.
"""

import os
import time
from pathlib import Path

import torch
from monai.data import DataLoader, Dataset, decollate_batch, list_data_collate
from monai.inferers import sliding_window_inference
from monai.losses import DiceCELoss
from monai.metrics import DiceMetric
from monai.networks.nets import UNet
from monai.transforms import (
    AsDiscrete,
    Compose,
    EnsureChannelFirstd,
    LoadImaged,
    Orientationd,
    RandCropByPosNegLabeld,
    RandFlipd,
    RandShiftIntensityd,
    ScaleIntensityRanged,
    Spacingd,
)
from monai.utils import set_determinism

if os.environ.get("CURED") == "1":
    from voxelocity.monai import CacheDataset as Dataset


def main() -> None:
    folder = Path(os.environ["VOXELOCITY_DATA"]) / "openkbp_headneck_ct"
    images = sorted((folder / "imagesTr").glob("*.nii.gz"))
    files = [{"image": str(p), "label": str(folder / "labelsTr" / p.name.replace("_0000", ""))} for p in images]
    train_files, val_files = files[:16], files[16:]
    set_determinism(seed=0)

    fixed = [
        LoadImaged(keys=["image", "label"]),
        EnsureChannelFirstd(keys=["image", "label"]),
        Orientationd(keys=["image", "label"], axcodes="RAS"),
        Spacingd(keys=["image", "label"], pixdim=(4.0, 4.0, 3.0), mode=("bilinear", "nearest")),
        ScaleIntensityRanged(keys=["image"], a_min=-200, a_max=300, b_min=0.0, b_max=1.0, clip=True),
    ]
    train_transforms = Compose(
        [
            *fixed,
            RandCropByPosNegLabeld(
                keys=["image", "label"], label_key="label", spatial_size=(48, 48, 48), pos=1, neg=1, num_samples=2
            ),
            RandFlipd(keys=["image", "label"], prob=0.5, spatial_axis=0),
            RandShiftIntensityd(keys=["image"], offsets=0.1, prob=0.5),
        ]
    )
    train_ds = Dataset(data=train_files, transform=train_transforms)
    train_loader = DataLoader(train_ds, batch_size=2, shuffle=True, num_workers=2, collate_fn=list_data_collate)
    val_ds = Dataset(data=val_files, transform=Compose(fixed))
    val_loader = DataLoader(val_ds, batch_size=1, num_workers=2)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = UNet(spatial_dims=3, in_channels=1, out_channels=8, channels=(8, 16, 32, 64), strides=(2, 2, 2)).to(device)
    loss_function = DiceCELoss(to_onehot_y=True, softmax=True)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    dice_metric = DiceMetric(include_background=False)
    post_pred, post_label = AsDiscrete(argmax=True, to_onehot=8), AsDiscrete(to_onehot=8)

    for epoch in range(int(os.environ.get("EPOCHS", "1000"))):
        started = time.time()
        model.train()
        epoch_loss = 0.0
        for batch_data in train_loader:
            inputs, labels = batch_data["image"].to(device), batch_data["label"].to(device)
            optimizer.zero_grad()
            outputs = model(inputs)
            loss = loss_function(outputs, labels)
            loss.backward()
            optimizer.step()
            epoch_loss += loss.item()
        if (epoch + 1) % 2 == 0:
            model.eval()
            with torch.no_grad():
                for val_data in val_loader:
                    val_inputs, val_labels = val_data["image"].to(device), val_data["label"].to(device)
                    val_outputs = sliding_window_inference(val_inputs, (48, 48, 48), 4, model)
                    preds = [post_pred(i) for i in decollate_batch(val_outputs)]
                    dice_metric(y_pred=preds, y=[post_label(i) for i in decollate_batch(val_labels)])
                metric = dice_metric.aggregate().item()
                dice_metric.reset()
            print(f"mean dice: {metric:.4f}")
        print(
            f"epoch {epoch + 1}: loss {epoch_loss / len(train_loader):.4f}, {time.time() - started:.3f} s", flush=True
        )


if __name__ == "__main__":
    main()
