"""A data set that keeps each scan it has read, in workers that end with each epoch: the scans are lost with them."""

import os
import time
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
from monai.losses import DiceLoss
from monai.networks.nets import UNet
from scipy import ndimage
from torch.utils.data import DataLoader, Dataset

SIDE = 48


class HeadNeck(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Crops of CT scans at 3 mm with their organs."""

    def __init__(self, root: Path) -> None:
        self.images = sorted((root / "imagesTr").glob("*.nii.gz"))[:16]
        self.labels = [root / "labelsTr" / path.name.replace("_0000", "") for path in self.images]
        self.in_memory: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def __len__(self) -> int:
        return len(self.images)

    def load(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        image, label = nib.load(self.images[index]), nib.load(self.labels[index])
        zoom = np.array(image.header.get_zooms()) / 3.0
        voxels = ndimage.zoom(image.get_fdata(dtype=np.float32), zoom, order=1)
        classes = ndimage.zoom(np.asarray(label.dataobj).astype(np.uint8), zoom, order=0)
        return np.clip((voxels + 200) / 500, 0, 1), classes

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index not in self.in_memory:
            self.in_memory[index] = self.load(index)
        image, label = self.in_memory[index]
        start = [np.random.randint(0, max(1, length - SIDE)) for length in image.shape]  # noqa: NPY002
        box = tuple(slice(at, at + SIDE) for at in start)
        return torch.from_numpy(image[box][None].copy()), torch.from_numpy(label[box][None].copy())


def main() -> None:
    torch.manual_seed(0)
    data = HeadNeck(Path(os.environ["VOXELOCITY_DATA"]) / "openkbp_headneck_ct")
    loader = DataLoader(data, batch_size=2, shuffle=True, num_workers=2)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = UNet(
        spatial_dims=3, in_channels=1, out_channels=8, channels=(16, 32, 64, 128), strides=(2, 2, 2), num_res_units=2
    ).to(device)
    criterion = DiceLoss(to_onehot_y=True, softmax=True)
    opt = torch.optim.Adam(net.parameters(), 1e-4)
    for epoch in range(int(os.environ.get("EPOCHS", "1000"))):
        started, total = time.time(), 0.0
        net.train()
        for images, labels in loader:
            opt.zero_grad()
            loss = criterion(net(images.to(device)), labels.to(device))
            loss.backward()
            opt.step()
            total += loss.item()
        print(f"epoch {epoch + 1}: loss {total / len(loader):.4f}, {time.time() - started:.3f} s", flush=True)


if __name__ == "__main__":
    main()
