"""MONAI's own classes, bound once: ours still build on them after ours have replaced MONAI's names."""

from __future__ import annotations

from monai.data import (
    CacheDataset,
    CacheNTransDataset,
    DataLoader,
    Dataset,
    LMDBDataset,
    PersistentDataset,
    SmartCacheDataset,
    ThreadDataLoader,
)

__all__ = [
    "CacheDataset",
    "CacheNTransDataset",
    "DataLoader",
    "Dataset",
    "LMDBDataset",
    "PersistentDataset",
    "SmartCacheDataset",
    "ThreadDataLoader",
]
