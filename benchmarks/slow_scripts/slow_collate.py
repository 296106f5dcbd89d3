"""Batches are put together by a function of the user's own, which computes a distance map of every label.

With CURED=1 the distance map of a label is computed once, and kept.
"""

import os
import time
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
from monai.networks.nets import UNet
from scipy import ndimage
from torch.utils.data import DataLoader

folder = Path(os.environ["VOXELOCITY_DATA"]) / "hippocampus"


def crop(array: np.ndarray) -> np.ndarray:
    return np.pad(array, [(0, max(0, 32 - n)) for n in array.shape])[:32, :32, :32].astype(np.float32)


def load() -> list[tuple[np.ndarray, np.ndarray]]:
    cases = []
    for path in sorted((folder / "imagesTr").glob("*.nii.gz"))[:64]:
        image = crop(nib.load(path).get_fdata())
        label = crop(nib.load(folder / "labelsTr" / path.name.replace("_0000", "")).get_fdata())
        cases.append(((image - image.mean()) / image.std(), label))
    return cases


def weighted(image: np.ndarray, label: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    distance = ndimage.distance_transform_edt(label == 0) + ndimage.distance_transform_edt(label > 0)
    weight = torch.from_numpy(np.exp(-distance / 4).astype(np.float32))
    return torch.from_numpy(image)[None], torch.from_numpy(label).long(), weight


def collate(items: list[tuple[np.ndarray, np.ndarray]]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.stack(tensors) for tensors in zip(*(weighted(*item) for item in items), strict=True))


torch.manual_seed(0)
if os.environ.get("CURED") == "1":
    loader = DataLoader([weighted(*case) for case in load()], batch_size=8, shuffle=True)
else:
    loader = DataLoader(load(), batch_size=8, shuffle=True, collate_fn=collate)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = UNet(spatial_dims=3, in_channels=1, out_channels=3, channels=(8, 16, 32), strides=(2, 2)).to(device)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
loss_function = torch.nn.CrossEntropyLoss(reduction="none")

for epoch in range(int(os.environ.get("EPOCHS", "1000"))):
    started = time.time()
    for image, label, weight in loader:
        optimizer.zero_grad()
        loss = (loss_function(model(image.to(device)), label.to(device)) * weight.to(device)).mean()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.4f}, {time.time() - started:.3f} s", flush=True)
