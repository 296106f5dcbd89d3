"""MONAI's data sets and loaders: the same names, arguments and items, without their known faults.

They build on MONAI's own classes, bound when this package is imported, so that its names may replace MONAI's. The
functions that partition a list are MONAI's own: there is nothing to add to them.
"""

from monai.data import partition_dataset, partition_dataset_classes

from voxelocity.monai.datasets.buffer import ThreadBuffer, ThreadDataLoader
from voxelocity.monai.datasets.cached import CacheDataset, SmartCacheDataset
from voxelocity.monai.datasets.dataset import Dataset
from voxelocity.monai.datasets.lmdb import LMDBDataset
from voxelocity.monai.datasets.loader import DataLoader
from voxelocity.monai.datasets.persistent import CacheNTransDataset, PersistentDataset

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
