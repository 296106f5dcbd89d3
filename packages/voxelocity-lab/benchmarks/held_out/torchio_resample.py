"""TorchIO: head and neck CT brought to 4 mm with B-splines, then augmented, each time that a subject is used."""

import os
import time
from pathlib import Path

import torch
import torchio as tio
from monai.networks.nets import UNet


def main() -> None:
    torch.manual_seed(0)
    root = Path(os.environ["VOXELOCITY_DATA"]) / "openkbp_headneck_ct"
    subjects = [
        tio.Subject(ct=tio.ScalarImage(path), organs=tio.LabelMap(root / "labelsTr" / path.name.replace("_0000", "")))
        for path in sorted((root / "imagesTr").glob("*.nii.gz"))[:8]
    ]
    preprocess = tio.Compose(
        [
            tio.ToCanonical(),
            tio.Resample(4, image_interpolation="bspline"),
            tio.CropOrPad((80, 80, 64)),
            tio.Clamp(-200, 300),
            tio.RescaleIntensity((0, 1)),
        ]
    )
    augment = tio.Compose([tio.RandomFlip(axes=(0,)), tio.RandomNoise(std=(0, 0.05), p=0.5)])
    if os.environ.get("CURED") == "1":
        dataset = tio.SubjectsDataset([preprocess(subject) for subject in subjects], transform=augment)
    else:
        dataset = tio.SubjectsDataset(subjects, transform=tio.Compose([preprocess, augment]))
    loader = tio.SubjectsLoader(dataset, batch_size=1, shuffle=True, num_workers=2, persistent_workers=True)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = UNet(spatial_dims=3, in_channels=1, out_channels=8, channels=(8, 16, 32), strides=(2, 2)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    criterion = torch.nn.CrossEntropyLoss()
    for epoch in range(int(os.environ.get("EPOCHS", "1000"))):
        started, losses = time.time(), []
        for batch in loader:
            inputs = batch["ct"][tio.DATA].to(device)
            targets = batch["organs"][tio.DATA][:, 0].long().to(device)
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.4f}, {time.time() - started:.3f} s", flush=True)


if __name__ == "__main__":
    main()
