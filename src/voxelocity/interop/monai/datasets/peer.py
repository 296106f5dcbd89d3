"""MONAI's own classes, bound once: where ours are put in the place of MONAI's names, these stay what ours build on."""

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
