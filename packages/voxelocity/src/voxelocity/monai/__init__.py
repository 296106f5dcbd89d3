"""What a MONAI script imports instead of MONAI's own: the same names, signatures and results, faster.

- `chain`: `compile`: the split at the first random transform, the plan, the cache, batches made by threads.
- `lower`: each random transform as one decorated function: MONAI's draw, with one of `steps` in place of its work.
- `steps`: what random transforms do to a patch, run together in few passes by C loops, torch or Triton.
- `deterministic`: MONAI's slow fixed transforms with one part replaced, the loop over the voxels.
- `datasets`: MONAI's data sets and loaders over `chain` and `items`, which keeps prepared items.
- `fingerprint` with `content` and `sources`: what a chain does and what an item is, as texts that processes agree on.
- `compared`: which versions were compared, which private names are read. `difference`, `check`: how results differ.
- `window` with `stitch`, `ranges`, `novograd`, `cucim`: sliding windows, `Range`, `Novograd` and the `CuCIM` family.
- `quiet` imports MONAI and restores the process. `auto3dseg` is the public name of `tuning.auto3dseg`.
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


# Gone from MONAI: the class that does the same, with its arguments.
_REPLACED = {
    "AddChannel": 'EnsureChannelFirst{d}({keys}channel_dim="no_channel")',
    "AsChannelFirst": "EnsureChannelFirst{d}({keys}channel_dim=-1)",
    "SplitChannel": "SplitDim{d}({keys}dim=0)",
}


def __getattr__(name: str) -> object:
    # An AttributeError of ours would lose its words in `from voxelocity.monai import NAME`.
    if not name.startswith("_") and (instead := _where_else(name)):
        raise ImportError(f"voxelocity.monai has no {name}: {instead}", name=__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _where_else(name: str) -> str:
    """What to write in place of a name that is not here; "" for a name that MONAI does not know either."""
    # Those that MONAI's documentation imports names from.
    from monai import data, engines, handlers, inferers, losses, metrics, optimizers, transforms, utils
    from monai.networks import nets

    for module in (transforms, losses, nets, data, inferers, metrics, engines, handlers, utils, optimizers):
        if hasattr(module, name):
            return f"import it from MONAI: from {module.__name__} import {name}"
    for suffix in ("", "d", "D", "Dict"):
        if (old := name.removesuffix(suffix)) in _REPLACED and name == old + suffix:
            text = _REPLACED[old].format(d="d" if suffix else "", keys="keys, " if suffix else "")
            return f"MONAI has removed it; use {text} from monai.transforms"
    return ""
