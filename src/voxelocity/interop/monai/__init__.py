"""MONAI's names with this package's engine behind them: public as `voxelocity.monai`."""

from __future__ import annotations

from voxelocity.interop.monai import quiet as quiet  # first: imports MONAI and restores the process state

# isort: split
from voxelocity.interop.monai.chain import ChainError, ChainPlan, CompiledChain, compile
from voxelocity.interop.monai.check import CheckTable, check
from voxelocity.interop.monai.cucim import (
    CuCIM,
    CuCIMD,
    CuCIMd,
    CuCIMDict,
    RandCuCIM,
    RandCuCIMD,
    RandCuCIMd,
    RandCuCIMDict,
)
from voxelocity.interop.monai.datasets import (
    CacheDataset,
    CacheNTransDataset,
    DataLoader,
    Dataset,
    LMDBDataset,
    PersistentDataset,
    SmartCacheDataset,
    ThreadBuffer,
    ThreadDataLoader,
    partition_dataset,
    partition_dataset_classes,
)
from voxelocity.interop.monai.novograd import Novograd
from voxelocity.interop.monai.ranges import Range
from voxelocity.interop.monai.window import SlidingWindowInferer, sliding_window_inference

__all__ = [
    "CacheDataset",
    "CacheNTransDataset",
    "ChainError",
    "ChainPlan",
    "CheckTable",
    "CompiledChain",
    "CuCIM",
    "CuCIMD",
    "CuCIMDict",
    "CuCIMd",
    "DataLoader",
    "Dataset",
    "LMDBDataset",
    "Novograd",
    "PersistentDataset",
    "RandCuCIM",
    "RandCuCIMD",
    "RandCuCIMDict",
    "RandCuCIMd",
    "Range",
    "SlidingWindowInferer",
    "SmartCacheDataset",
    "ThreadBuffer",
    "ThreadDataLoader",
    "check",
    "compile",
    "partition_dataset",
    "partition_dataset_classes",
    "sliding_window_inference",
]
