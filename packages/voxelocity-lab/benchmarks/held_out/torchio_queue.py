"""TorchIO's Queue of patches, which has no workers: the training itself loads and augments the subjects."""

import os
import time
from pathlib import Path

import torch
import torchio as tio
from monai.networks.nets import UNet
from torch.utils.data import DataLoader


def main() -> None:
    torch.manual_seed(0)
    root = Path(os.environ["VOXELOCITY_DATA"]) / "openkbp_headneck_ct"
    subjects = [
        tio.Subject(ct=tio.ScalarImage(path), organs=tio.LabelMap(root / "labelsTr" / path.name.replace("_0000", "")))
        for path in sorted((root / "imagesTr").glob("*.nii.gz"))[:8]
    ]
    transform = tio.Compose(
        [
            tio.ToCanonical(),
            tio.Clamp(-200, 300),
            tio.RandomBiasField(p=0.5),
            tio.RandomBlur(std=(0, 1)),
            tio.RandomNoise(std=(0, 10)),
            tio.RandomFlip(axes=(0,)),
            tio.ZNormalization(),
        ]
    )
    dataset = tio.SubjectsDataset(subjects, transform=transform)
    sampler = tio.data.LabelSampler(48, label_name="organs")
    if os.environ.get("CURED") == "1":
        queue = tio.Queue(dataset, max_length=16, samples_per_volume=4, sampler=sampler, num_workers=2)
    else:
        queue = tio.Queue(dataset, max_length=16, samples_per_volume=4, sampler=sampler)
    # The queue has the workers, this loader must have none.
    loader = DataLoader(queue, batch_size=2, num_workers=0)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = UNet(spatial_dims=3, in_channels=1, out_channels=8, channels=(8, 16, 32), strides=(2, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    criterion = torch.nn.CrossEntropyLoss()
    for epoch in range(int(os.environ.get("EPOCHS", "1000"))):
        started, total = time.time(), 0.0
        for patches in loader:
            inputs = patches["ct"][tio.DATA].to(device)
            targets = patches["organs"][tio.DATA][:, 0].long().to(device)
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch + 1}: loss {total / len(loader):.4f}, {time.time() - started:.3f} s", flush=True)


if __name__ == "__main__":
    main()
