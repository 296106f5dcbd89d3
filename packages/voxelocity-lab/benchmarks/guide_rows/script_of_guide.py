"""A short training as MONAI's fast-training guide writes it, with its ranges; the import of `Range` is ours."""

import os
import time
from pathlib import Path

import torch
from monai.losses import DiceCELoss
from monai.networks.nets import UNet
from monai.transforms import (
    Compose,
    EnsureChannelFirstd,
    LoadImaged,
    NormalizeIntensityd,
    RandFlipd,
    RandSpatialCropd,
    SpatialPadd,
)

import voxelocity as vx
from voxelocity.monai import CacheDataset, Novograd, Range, ThreadBuffer, ThreadDataLoader


def main() -> None:
    root = Path(os.environ["VOXELOCITY_DATA"]) / "hippocampus"
    labels = sorted((root / "labelsTr").glob("*.nii.gz"))[:12]
    files = [{"image": str(root / "imagesTr" / path.name), "label": str(path)} for path in labels]
    keys, size = ["image", "label"], (32, 32, 32)
    transforms = Compose(
        [
            Range("LoadImage")(LoadImaged(keys)),
            Range()(EnsureChannelFirstd(keys)),
            NormalizeIntensityd("image"),
            SpatialPadd(keys, size),
            RandSpatialCropd(keys, size, random_size=False),
            RandFlipd(keys, prob=0.5, spatial_axis=0),
        ]
    )
    dataset = CacheDataset(files, transforms, progress=False)
    loader = ThreadDataLoader(dataset, batch_size=4, shuffle=True, num_workers=0)
    network = Range("network")(UNet(3, 1, 3, channels=(8, 16, 32), strides=(2, 2)))
    optimizer = Range(methods="step")(Novograd(network.parameters(), lr=1e-3))
    loss_of = DiceCELoss(to_onehot_y=True, softmax=True)
    for epoch in range(int(os.environ.get("EPOCHS", "40"))):
        began = time.perf_counter()
        span = vx.start_range(message="epoch", color="red")
        for batch in ThreadBuffer(loader, buffer_size=1):
            optimizer.zero_grad()
            loss = loss_of(network(batch["image"]), batch["label"])
            loss.backward()
            optimizer.step()
        vx.end_range(span)
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}, {time.perf_counter() - began:.2f} s", flush=True)
    assert torch.isfinite(loss)


if __name__ == "__main__":
    main()
