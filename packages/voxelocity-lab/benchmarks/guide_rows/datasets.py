"""MONAI's classes of data sets under our import, as the guide on kinds of data sets uses them."""

import os
import tempfile
from pathlib import Path

import monai.data
from monai.data import partition_dataset as monai_partition
from monai.transforms import Compose, EnsureChannelFirstd, LoadImaged, RandFlipd

from voxelocity.monai import (
    CacheDataset,
    DataLoader,
    LMDBDataset,
    PersistentDataset,
    SmartCacheDataset,
    ThreadBuffer,
    ThreadDataLoader,
    partition_dataset,
)


def windows(kind: type, **arguments: object) -> list[list[int]]:
    """What five epochs of a smart cache over five items hold."""
    dataset = kind(data=[1, 2, 3, 4, 5], transform=None, cache_num=4, replace_rate=0.25, progress=False, **arguments)
    dataset.start()
    held = []
    for _ in range(5):
        held.append([dataset[number] for number in range(len(dataset))])
        dataset.update_cache()
    dataset.shutdown()
    return held


def main() -> None:
    root = Path(os.environ["VOXELOCITY_DATA"]) / "hippocampus"
    files = [{"image": str(path)} for path in sorted((root / "imagesTr").glob("*.nii.gz"))[:6]]
    chain = Compose([LoadImaged("image"), EnsureChannelFirstd("image"), RandFlipd("image", prob=0.5, spatial_axis=0)])
    with tempfile.TemporaryDirectory() as folder:
        datasets = (
            CacheDataset(files, chain, progress=False),
            PersistentDataset(files, chain, cache_dir=f"{folder}/persistent"),
            LMDBDataset(files, chain, cache_dir=f"{folder}/lmdb", progress=False),
        )
        for dataset in datasets:
            kinds = [getattr(monai.data, name) for name in ("CacheDataset", "PersistentDataset", "LMDBDataset")]
            assert isinstance(dataset, tuple(kinds)), type(dataset)
            for loader in (DataLoader(dataset, batch_size=1), ThreadDataLoader(dataset, batch_size=1, num_workers=0)):
                for _ in range(2):
                    assert sum(batch["image"].shape[1] for batch in ThreadBuffer(loader, buffer_size=1)) == len(files)
            print(dataset.plan())
    assert windows(SmartCacheDataset, shuffle=False) == [
        [1, 2, 3, 4],
        [2, 3, 4, 5],
        [3, 4, 5, 1],
        [4, 5, 1, 2],
        [5, 1, 2, 3],
    ]
    assert windows(SmartCacheDataset) == windows(monai.data.SmartCacheDataset)
    assert partition_dataset(files, num_partitions=2, seed=0) == monai_partition(files, num_partitions=2, seed=0)


if __name__ == "__main__":
    main()
