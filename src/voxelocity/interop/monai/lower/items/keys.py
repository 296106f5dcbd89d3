"""Changes of which values an item has: none of them reads a voxel, so no sketch is finished for them."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import torch
from monai.data.meta_obj import MetaObj
from monai.transforms import CopyItemsd, DeleteItemsd, FlattenSubKeysd, Identity, Identityd, SelectItemsd

from voxelocity.interop.monai.lower.lowering import Lowering, Lowerings
from voxelocity.interop.monai.lower.sketch import Sketch


def _by_itself(transform: Any, data: Any) -> Any:
    """MONAI's own transform, which passes sketches on like any other value."""
    return transform(data)


def _copy(transform: Any, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    changed = dict(data)
    num = len(transform.keys)
    for time in range(transform.times):
        for key, name in transform.key_iterator(changed, transform.names[time * num : (time + 1) * num]):
            if name in changed:
                raise KeyError(f"CopyItemsd: the item has a '{name}' already, so '{key}' cannot be copied there")
            changed[name] = _copied(changed[key])
    return changed


def _copied(value: Any) -> Any:
    if isinstance(value, Sketch):
        return value.branch()
    return MetaObj.copy_items(value) if isinstance(value, torch.Tensor | np.ndarray) else copy.deepcopy(value)


LOWERINGS: Lowerings = {
    Identity: Lowering(apply=_by_itself),
    Identityd: Lowering(apply=_by_itself),
    DeleteItemsd: Lowering(apply=_by_itself),
    SelectItemsd: Lowering(apply=_by_itself),
    FlattenSubKeysd: Lowering(apply=_by_itself),
    CopyItemsd: Lowering(apply=_copy),
}
