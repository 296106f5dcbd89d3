"""A smart cache on each rank, after MONAI's distributed example `unet_training_smartcache.py`."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from monai.networks.nets import UNet
from monai.transforms import CenterSpatialCropd, Compose, EnsureChannelFirstd, LoadImaged, SpatialPadd

from voxelocity.monai import DataLoader, SmartCacheDataset, partition_dataset


def train() -> torch.Tensor:
    """The weights after three epochs."""
    torch.manual_seed(0)
    root = Path(os.environ["VOXELOCITY_DATA"]) / "hippocampus"
    files = [{"image": str(path)} for path in sorted((root / "imagesTr").glob("*.nii.gz"))[:8]]
    own = partition_dataset(files, num_partitions=dist.get_world_size(), even_divisible=True)[dist.get_rank()]
    size = (32, 32, 32)
    chain = Compose(
        [
            LoadImaged("image"),
            EnsureChannelFirstd("image"),
            SpatialPadd("image", size),
            CenterSpatialCropd("image", size),
        ]
    )
    dataset = SmartCacheDataset(own, chain, replace_rate=0.5, cache_num=2, num_replace_workers=1, progress=False)
    loader = DataLoader(dataset, batch_size=2)
    network = torch.nn.parallel.DistributedDataParallel(UNet(3, 1, 1, channels=(4, 8), strides=(2,)))
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    dataset.start()
    for _ in range(3):
        for batch in loader:
            optimizer.zero_grad()
            network(batch["image"].as_tensor()).square().mean().backward()
            optimizer.step()
        dataset.update_cache()
    dataset.shutdown()
    return torch.cat([value.detach().flatten() for value in network.parameters()])


def main() -> None:
    dist.init_process_group("gloo")
    weights = train()
    everyone = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, weights)
    assert all(torch.equal(weights, other) for other in everyone)
    # After the end of a wrapped network: torch 2.13 may wait forever for one that ends later.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
