"""Sixteen workers, as the forum said; the machine has fewer cores.

With CURED=1 there are as many as cores, and they are kept; OMP_WAIT_POLICY=PASSIVE goes with it.
"""

import os
import time
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
from monai.networks.nets import UNet
from scipy import ndimage
from torch.utils.data import DataLoader, Dataset

folder = Path(os.environ["VOXELOCITY_DATA"]) / "hippocampus"


class Hippocampus(Dataset):
    """Scans turned at random."""

    def __init__(self) -> None:
        self.paths = sorted((folder / "imagesTr").glob("*.nii.gz"))[:96]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        path = self.paths[index]
        image = nib.load(path).get_fdata(dtype=np.float32)
        label = nib.load(folder / "labelsTr" / path.name.replace("_0000", "")).get_fdata(dtype=np.float32)
        angle = np.random.uniform(-15, 15)  # noqa: NPY002  as people write it
        image = ndimage.rotate(image, angle, reshape=False, order=1)
        label = ndimage.rotate(label, angle, reshape=False, order=0)
        image = np.pad(image, [(0, max(0, 32 - n)) for n in image.shape])[:32, :32, :32]
        label = np.pad(label, [(0, max(0, 32 - n)) for n in label.shape])[:32, :32, :32]
        return (image - image.mean())[None] / image.std(), label.astype(np.int64)


def main() -> None:
    torch.manual_seed(0)
    if os.environ.get("CURED") == "1":
        loader = DataLoader(Hippocampus(), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)
    else:
        loader = DataLoader(Hippocampus(), batch_size=4, shuffle=True, num_workers=16)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = UNet(spatial_dims=3, in_channels=1, out_channels=3, channels=(8, 16, 32), strides=(2, 2)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    loss_function = torch.nn.CrossEntropyLoss()
    for epoch in range(int(os.environ.get("EPOCHS", "1000"))):
        started = time.time()
        for image, label in loader:
            optimizer.zero_grad()
            loss = loss_function(model(image.to(device)), label.to(device))
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}, {time.time() - started:.3f} s", flush=True)


if __name__ == "__main__":
    main()
