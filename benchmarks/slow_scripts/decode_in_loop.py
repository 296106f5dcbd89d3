"""A plain PyTorch loop, as many begin: each scan is read, scaled and cropped where it is used.

With CURED=1 each scan is read once and kept.
"""

import os
import time
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
from monai.networks.nets import UNet

folder = Path(os.environ["VOXELOCITY_DATA"]) / "openkbp_headneck_ct"
images = sorted((folder / "imagesTr").glob("*.nii.gz"))
labels = [folder / "labelsTr" / path.name.replace("_0000", "") for path in images]

torch.manual_seed(0)
rng = np.random.default_rng(0)
model = UNet(spatial_dims=3, in_channels=1, out_channels=8, channels=(8, 16, 32), strides=(2, 2))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
loss_function = torch.nn.CrossEntropyLoss()

kept: dict[int, tuple[np.ndarray, np.ndarray]] = {}
if os.environ.get("CURED") == "1":
    for number, (path, label_path) in enumerate(zip(images, labels, strict=True)):
        image = nib.load(path).get_fdata(dtype=np.float32)
        kept[number] = (image - image.mean()) / image.std(), nib.load(label_path).get_fdata(dtype=np.float32)

for epoch in range(int(os.environ.get("EPOCHS", "1000"))):
    started = time.time()
    for i in rng.permutation(len(images)):
        if i in kept:
            image, label = kept[i]
        else:
            image = nib.load(images[i]).get_fdata(dtype=np.float32)
            label = nib.load(labels[i]).get_fdata(dtype=np.float32)
            image = (image - image.mean()) / image.std()
        x, y, z = rng.integers(0, 128 - 32, 3)
        inputs = torch.from_numpy(image[None, None, x : x + 32, y : y + 32, z : z + 32].copy())
        targets = torch.from_numpy(label[None, x : x + 32, y : y + 32, z : z + 32].copy()).long()
        optimizer.zero_grad()
        loss = loss_function(model(inputs), targets)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.4f}, {time.time() - started:.3f} s", flush=True)
