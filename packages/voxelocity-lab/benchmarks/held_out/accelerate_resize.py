"""Accelerate: hippocampus crops differ in size; the collate function brings image and one-hot to one."""

import os
import time
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from monai.networks.nets import UNet
from scipy import ndimage
from torch.utils.data import DataLoader

SIZE = (48, 48, 48)


def load(root: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    cases = []
    for path in sorted((root / "imagesTr").glob("*.nii.gz"))[:80]:
        image = nib.load(path).get_fdata(dtype=np.float32)
        label = nib.load(root / "labelsTr" / path.name.replace("_0000", "")).get_fdata(dtype=np.float32)
        cases.append(((image - image.mean()) / image.std(), label))
    return cases


def resize(image: np.ndarray, label: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    factors = [size / n for size, n in zip(SIZE, image.shape, strict=True)]
    image = ndimage.zoom(image, factors, order=3)
    one_hot = [ndimage.zoom((label == value).astype(np.float32), factors, order=1) for value in range(3)]
    return torch.from_numpy(image)[None], torch.from_numpy(np.stack(one_hot))


def collate(items: list[tuple[np.ndarray, np.ndarray]]) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = zip(*[resize(image, label) for image, label in items], strict=True)
    return torch.stack(images), torch.stack(labels)


def main() -> None:
    set_seed(0)
    accelerator = Accelerator()
    cases = load(Path(os.environ["VOXELOCITY_DATA"]) / "hippocampus")
    if os.environ.get("CURED") == "1":
        cases = [resize(image, label) for image, label in cases]
        loader = DataLoader(cases, batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)
    else:
        loader = DataLoader(
            cases, batch_size=4, shuffle=True, num_workers=2, persistent_workers=True, collate_fn=collate
        )
    model = UNet(spatial_dims=3, in_channels=1, out_channels=3, channels=(8, 16, 32), strides=(2, 2))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    for epoch in range(int(os.environ.get("EPOCHS", "1000"))):
        started = time.time()
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        accelerator.print(f"epoch {epoch + 1}: loss {loss.item():.4f}, {time.time() - started:.3f} s", flush=True)


if __name__ == "__main__":
    main()
