"""Head and neck CT with MONAI: scans are cached, whole ones are deformed, and the crop comes last."""

import os
import time
from pathlib import Path

import torch
from monai.data import CacheDataset, DataLoader, list_data_collate
from monai.losses import DiceCELoss
from monai.networks.nets import UNet
from monai.transforms import (
    Compose,
    EnsureChannelFirstd,
    LoadImaged,
    Orientationd,
    Rand3DElasticd,
    RandCropByPosNegLabeld,
    RandFlipd,
    RandScaleIntensityd,
    ScaleIntensityRanged,
)
from monai.utils import set_determinism

KEYS = ["image", "label"]


def get_transforms() -> Compose:
    load = [
        LoadImaged(keys=KEYS),
        EnsureChannelFirstd(keys=KEYS),
        Orientationd(keys=KEYS, axcodes="RAS"),
        ScaleIntensityRanged(keys=["image"], a_min=-160, a_max=240, b_min=0.0, b_max=1.0, clip=True),
    ]
    crop = RandCropByPosNegLabeld(keys=KEYS, label_key="label", spatial_size=(64, 64, 64), pos=2, neg=1, num_samples=1)
    deform = Rand3DElasticd(
        keys=KEYS, sigma_range=(5, 7), magnitude_range=(50, 150), prob=0.25, mode=("bilinear", "nearest")
    )
    intensity = [RandFlipd(keys=KEYS, prob=0.5, spatial_axis=0), RandScaleIntensityd(keys=["image"], factors=0.1)]
    if os.environ.get("CURED") == "1":
        return Compose([*load, crop, deform, *intensity])
    return Compose([*load, deform, *intensity, crop])


def main() -> None:
    set_determinism(seed=0)
    root = Path(os.environ["VOXELOCITY_DATA"]) / "openkbp_headneck_ct"
    images = sorted((root / "imagesTr").glob("*.nii.gz"))[:12]
    data = [{"image": str(p), "label": str(root / "labelsTr" / p.name.replace("_0000", ""))} for p in images]
    train_ds = CacheDataset(data, get_transforms(), cache_rate=1.0, num_workers=2, progress=False)
    train_loader = DataLoader(
        train_ds, batch_size=2, shuffle=True, num_workers=2, collate_fn=list_data_collate, persistent_workers=True
    )

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = UNet(spatial_dims=3, in_channels=1, out_channels=8, channels=(8, 16, 32, 64), strides=(2, 2, 2)).to(device)
    loss_function = DiceCELoss(to_onehot_y=True, softmax=True)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=1e-5)

    for epoch in range(int(os.environ.get("EPOCHS", "1000"))):
        started = time.time()
        model.train()
        epoch_loss = 0.0
        for batch in train_loader:
            inputs, labels = batch["image"].to(device), batch["label"].to(device)
            optimizer.zero_grad()
            loss = loss_function(model(inputs), labels)
            loss.backward()
            optimizer.step()
            epoch_loss += loss.item()
        print(
            f"epoch {epoch + 1}: loss {epoch_loss / len(train_loader):.4f}, {time.time() - started:.3f} s", flush=True
        )


if __name__ == "__main__":
    main()
