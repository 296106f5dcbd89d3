"""Ignite: each iteration's output, which holds the prediction, is kept for a figure that is drawn at the end."""

import os
import time
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
from ignite.engine import Engine, Events
from ignite.handlers import TerminateOnNan
from ignite.metrics import RunningAverage
from monai.networks.nets import UNet
from torch.utils.data import DataLoader, TensorDataset

root = Path(os.environ["VOXELOCITY_DATA"]) / "hippocampus"
images, labels = [], []
for path in sorted((root / "imagesTr").glob("*.nii.gz"))[:64]:
    scan = nib.load(path).get_fdata(dtype=np.float32)
    segmentation = nib.load(root / "labelsTr" / path.name.replace("_0000", "")).get_fdata(dtype=np.float32)
    padding = [(0, max(0, 32 - n)) for n in scan.shape]
    images.append(np.pad((scan - scan.mean()) / scan.std(), padding)[None, :32, :32, :32])
    labels.append(np.pad(segmentation, padding)[:32, :32, :32])
dataset = TensorDataset(torch.from_numpy(np.stack(images)), torch.from_numpy(np.stack(labels)).long())

torch.manual_seed(0)
loader = DataLoader(dataset, batch_size=8, shuffle=True)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = UNet(spatial_dims=3, in_channels=1, out_channels=3, channels=(16, 32, 64), strides=(2, 2)).to(device)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
criterion = torch.nn.CrossEntropyLoss()


def train_step(engine: Engine, batch: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor | float]:
    model.train()
    x, y = batch[0].to(device), batch[1].to(device)
    optimizer.zero_grad()
    y_pred = model(x)
    loss = criterion(y_pred, y)
    loss.backward()
    optimizer.step()
    return {"loss": loss.item(), "y_pred": y_pred.detach(), "y": y}


trainer = Engine(train_step)
RunningAverage(output_transform=lambda output: output["loss"]).attach(trainer, "loss")
trainer.add_event_handler(Events.ITERATION_COMPLETED, TerminateOnNan(output_transform=lambda output: output["loss"]))
history = []


@trainer.on(Events.ITERATION_COMPLETED)
def keep(engine: Engine) -> None:
    if os.environ.get("CURED") == "1":
        history.append(engine.state.output["loss"])
    else:
        history.append(engine.state.output)


@trainer.on(Events.EPOCH_STARTED)
def start(engine: Engine) -> None:
    engine.state.started = time.time()


@trainer.on(Events.EPOCH_COMPLETED)
def report(engine: Engine) -> None:
    seconds = time.time() - engine.state.started
    print(f"epoch {engine.state.epoch}: loss {engine.state.metrics['loss']:.4f}, {seconds:.3f} s", flush=True)


trainer.run(loader, max_epochs=int(os.environ.get("EPOCHS", "1000")))
