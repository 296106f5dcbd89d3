"""What a MONAI script imports instead of MONAI's own: the same names, signatures and results, faster.

- `chain`: `compile`: the split at the first random transform, the plan, the cache, batches made by threads.
- `lower`: each random transform as one decorated function: MONAI's draw, with one of `steps` in place of its work.
- `steps`: what random transforms do to a patch, run together in few passes by Numba, torch or Triton.
- `deterministic`: MONAI's slow fixed transforms with one part replaced, the loop over the voxels.
- `datasets`: MONAI's data sets and loaders over `chain` and `items`, which keeps prepared items.
- `fingerprint` with `content` and `sources`: what a chain does and what an item is, as texts that processes agree on.
- `compared`: which versions were compared, which private names are read. `difference`, `check`: how results differ.
- `window` with `stitch`, `ranges`, `novograd`, `cucim`: sliding windows, `Range`, `Novograd` and the `CuCIM` family.
- `quiet` imports MONAI and restores the process; `absent` says where names are that are not here. `auto3dseg` is the
  public name of `tuning.auto3dseg`.
"""

from __future__ import annotations

from voxelocity.monai import quiet as quiet  # first: imports MONAI and restores the process state

# isort: split
from voxelocity.monai.chain import ChainError, ChainPlan, CompiledChain, compile
from voxelocity.monai.check import CheckTable, check
from voxelocity.monai.cucim import (
    CuCIM,
    CuCIMD,
    CuCIMd,
    CuCIMDict,
    RandCuCIM,
    RandCuCIMD,
    RandCuCIMd,
    RandCuCIMDict,
)
from voxelocity.monai.datasets import (
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
from voxelocity.monai.novograd import Novograd
from voxelocity.monai.ranges import Range
from voxelocity.monai.window import SlidingWindowInferer, sliding_window_inference

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


def __getattr__(name: str) -> object:
    from voxelocity.monai.absent import where_else

    # An AttributeError of ours would lose its words in `from voxelocity.monai import NAME`.
    if not name.startswith("_") and (instead := where_else(name)):
        raise ImportError(f"voxelocity.monai has no {name}: {instead}", name=__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
