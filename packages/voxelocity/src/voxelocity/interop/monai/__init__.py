"""MONAI's names with this package's engine behind them: public as `voxelocity.monai`.

- `chain`: `compile`: the split at the first random transform, the plan, the cache, batches made by threads.
- `lower`: each random transform as one decorated function: MONAI's draw, with our steps in place of its work.
- `deterministic`: MONAI's slow fixed transforms with one part replaced, the loop over the voxels.
- `datasets`: MONAI's data sets and loaders over `chain` and `items`, which keeps prepared items.
- `fingerprint` with `content` and `sources`: what a chain does and what an item is, as texts that processes agree on.
- `compared`: which versions were compared, which private names are read. `difference`, `check`: how results differ.
- `window` with `stitch`, `ranges`, `novograd`, `cucim`: sliding windows, `Range`, `Novograd` and the `CuCIM` family.
- `quiet` imports MONAI and restores the process; `absent` says where names are that are not here.
"""

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
