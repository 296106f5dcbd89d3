"""Random changes of a batch: drawn first, as plain data, then applied in one pass over the cached volume.

- `built_in`: the built-in effects, an entry each. `config`: how often and how strong. `params`: their numbers, with the
  formula of each step, and the boxes that patches need. `draw` and `numbers`: how they are drawn.
- `apply`: the engine for a device, with `tables`, `smooth`, `noise`, `memory` and `ahead` (kernels compiled early).
- Engines: `torch_engine`; `numba_engine` with the other `numba_` modules; `triton_engine` with the `triton_` ones.
- `effects`: effects of the user, such as `color`. `steps`: changes in any order, for chains of other libraries.
"""

from voxelocity.data.augment.ahead import compile_ahead
from voxelocity.data.augment.apply import augment, chosen_engine, filling_device, sample
from voxelocity.data.augment.built_in import EFFECTS
from voxelocity.data.augment.config import AugmentConfig
from voxelocity.data.augment.effects import BUILT_IN_EFFECTS, Effects
from voxelocity.data.augment.params import AugmentParams, ResidentSource, Source, needed_box, needed_boxes

__all__ = [
    "BUILT_IN_EFFECTS",
    "EFFECTS",
    "AugmentConfig",
    "AugmentParams",
    "Effects",
    "ResidentSource",
    "Source",
    "augment",
    "chosen_engine",
    "compile_ahead",
    "filling_device",
    "needed_box",
    "needed_boxes",
    "sample",
]
