"""Everything is in memory; the loss and a Dice of each class are read with .item() in every step.

With CURED=1 they are computed every 50 steps.
"""

import os
import time
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
from monai.networks.nets import UNet
from torch.utils.data import DataLoader, TensorDataset

folder = Path(os.environ["VOXELOCITY_DATA"]) / "hippocampus"


def crop(array: np.ndarray) -> np.ndarray:
    padded = np.pad(array, [(0, max(0, 32 - n)) for n in array.shape])
    return padded[:32, :32, :32].astype(np.float32)


paths = sorted((folder / "imagesTr").glob("*.nii.gz"))[:64]
images = np.stack([crop(nib.load(p).get_fdata()) for p in paths])
labels = np.stack([crop(nib.load(folder / "labelsTr" / p.name.replace("_0000", "")).get_fdata()) for p in paths])
images = (images - images.mean()) / images.std()

torch.manual_seed(0)
dataset = TensorDataset(torch.from_numpy(images)[:, None], torch.from_numpy(labels).long())
loader = DataLoader(dataset, batch_size=4, shuffle=True)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = UNet(spatial_dims=3, in_channels=1, out_channels=3, channels=(16, 32, 64), strides=(2, 2)).to(device)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
loss_function = torch.nn.CrossEntropyLoss()

step, every = 0, 50 if os.environ.get("CURED") == "1" else 1

for epoch in range(int(os.environ.get("EPOCHS", "1000"))):
    started, running_loss, running_dice = time.time(), 0.0, [0.0, 0.0]
    for image, label in loader:
        image, label = image.to(device), label.to(device)
        optimizer.zero_grad()
        output = model(image)
        loss = loss_function(output, label)
        loss.backward()
        optimizer.step()
        step += 1
        if step % every:
            continue
        running_loss += loss.item()
        guess = output.argmax(1)
        for c in (1, 2):
            both = ((guess == c) & (label == c)).sum().item()
            running_dice[c - 1] += 2 * both / max(1, (guess == c).sum().item() + (label == c).sum().item())
    print(f"epoch {epoch + 1}: loss {running_loss / len(loader):.4f}, {time.time() - started:.3f} s", flush=True)
