"""Training is quick; after each epoch whole scans are validated with windows that overlap by three quarters.

With CURED=1 they overlap by half.
"""

import os
import time
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
from monai.inferers import sliding_window_inference
from monai.networks.nets import UNet
from torch.utils.data import DataLoader, TensorDataset

overlap = 0.5 if os.environ.get("CURED") == "1" else 0.75
folder = Path(os.environ["VOXELOCITY_DATA"]) / "openkbp_headneck_ct"
paths = sorted((folder / "imagesTr").glob("*.nii.gz"))
images, labels = [], []
for path in paths:
    image = nib.load(path).get_fdata(dtype=np.float32)[::2, ::2, ::2]
    label = nib.load(folder / "labelsTr" / path.name.replace("_0000", "")).get_fdata(dtype=np.float32)[::2, ::2, ::2]
    images.append((image - image.mean()) / image.std())
    labels.append(label)
x, y = torch.from_numpy(np.stack(images))[:, None], torch.from_numpy(np.stack(labels)).long()

torch.manual_seed(0)
train_loader = DataLoader(TensorDataset(x[:16, :, 16:48, 16:48, 16:48], y[:16, 16:48, 16:48, 16:48]), batch_size=2)
val_loader = DataLoader(TensorDataset(x[16:], y[16:]), batch_size=1)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = UNet(spatial_dims=3, in_channels=1, out_channels=8, channels=(16, 32, 64), strides=(2, 2)).to(device)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
loss_function = torch.nn.CrossEntropyLoss()

for epoch in range(int(os.environ.get("EPOCHS", "1000"))):
    started = time.time()
    model.train()
    for image, label in train_loader:
        optimizer.zero_grad()
        loss = loss_function(model(image.to(device)), label.to(device))
        loss.backward()
        optimizer.step()
    model.eval()
    right = 0
    with torch.no_grad():
        for image, label in val_loader:
            output = sliding_window_inference(image.to(device), (32, 32, 32), 4, model, overlap=overlap)
            right += (output.argmax(1).cpu() == label).sum()
    print(f"epoch {epoch + 1}: accuracy {right / y[16:].numel():.4f}, {time.time() - started:.3f} s", flush=True)
