"""MONAI's data sets and loaders: the same names, arguments and items, without their known faults.

The functions that partition a list are MONAI's own: there is nothing to add to them.
"""

from monai.data import partition_dataset, partition_dataset_classes

from voxelocity.interop.monai.datasets.buffer import ThreadBuffer, ThreadDataLoader
from voxelocity.interop.monai.datasets.cached import CacheDataset
from voxelocity.interop.monai.datasets.lmdb import LMDBDataset
from voxelocity.interop.monai.datasets.loader import DataLoader
from voxelocity.interop.monai.datasets.persistent import CacheNTransDataset, PersistentDataset
from voxelocity.interop.monai.datasets.plain import Dataset
from voxelocity.interop.monai.datasets.smart import SmartCacheDataset

__all__ = [
    "CacheDataset",
    "CacheNTransDataset",
    "DataLoader",
    "Dataset",
    "LMDBDataset",
    "PersistentDataset",
    "SmartCacheDataset",
    "ThreadBuffer",
    "ThreadDataLoader",
    "partition_dataset",
    "partition_dataset_classes",
]
