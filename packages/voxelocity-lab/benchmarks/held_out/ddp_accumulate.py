"""A transformer over DDP with gloo: two ranks, eight batches to a step; each backward pass sums the gradients."""

import os
import tempfile
import time
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

ACCUMULATE = 8


def load(root: Path) -> TensorDataset:
    images, targets = [], []
    for path in sorted((root / "imagesTr").glob("*.nii.gz"))[:128]:
        image = nib.load(path).get_fdata(dtype=np.float32)
        label = nib.load(root / "labelsTr" / path.name.replace("_0000", "")).get_fdata(dtype=np.float32)
        padding = [(0, max(0, 32 - n)) for n in image.shape]
        images.append(np.pad((image - image.mean()) / image.std(), padding)[None, :32, :32, :32])
        targets.append((label == 1).sum() > (label == 2).sum())
    return TensorDataset(torch.from_numpy(np.stack(images)), torch.tensor(np.array(targets)).long())


class Transformer(nn.Module):
    """Classifies a volume by its patches."""

    def __init__(self, width: int = 512, num_layers: int = 6) -> None:
        super().__init__()
        self.embed = nn.Conv3d(1, width, 16, stride=16)
        self.position = nn.Parameter(0.02 * torch.randn(1, 8, width))
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers)
        self.head = nn.Linear(width, 2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        tokens = self.embed(image).flatten(2).transpose(1, 2) + self.position
        return self.head(self.encoder(tokens).mean(1))


def train(rank: int, world_size: int, init_file: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{init_file}", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world_size))
    dataset = load(Path(os.environ["VOXELOCITY_DATA"]) / "hippocampus")
    sampler = DistributedSampler(dataset, world_size, rank)
    loader = DataLoader(dataset, batch_size=2, sampler=sampler)
    model = DistributedDataParallel(Transformer())
    optimizer = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(int(os.environ.get("EPOCHS", "1000"))):
        sampler.set_epoch(epoch)
        started = time.time()
        for i, (image, label) in enumerate(loader):
            is_last = (i + 1) % ACCUMULATE == 0
            if os.environ.get("CURED") == "1" and not is_last:
                with model.no_sync():
                    loss = criterion(model(image), label) / ACCUMULATE
                    loss.backward()
            else:
                loss = criterion(model(image), label) / ACCUMULATE
                loss.backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
        if rank == 0:
            value = loss.item() * ACCUMULATE
            print(f"epoch {epoch + 1}: loss {value:.4f}, {time.time() - started:.3f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, args=(2, str(Path(folder) / "init")), nprocs=2)
