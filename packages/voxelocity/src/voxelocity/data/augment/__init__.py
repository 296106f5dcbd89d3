"""Random changes of a batch: drawn first, as plain data, then applied in one pass over the cached volume.

- `built_in`: the built-in effects, an entry each. `config`: how often and how strong. `params`: their numbers, with the
  formula of each step, the boxes that patches need, and tables along an axis. `noise`: its numbers by position.
- `apply`: parameters drawn, and applied by the engine for a device. `ahead`: kernels compiled early.
- Engines: `torch_engine`; `native_engine` with `native_loops`, in C; `triton_engine` with the
  `triton_` modules and `memory`.
- `effects`: effects of the user, such as `color`.
"""

from voxelocity.data.augment.ahead import possible_launches
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
    "filling_device",
    "needed_box",
    "needed_boxes",
    "possible_launches",
    "sample",
]
