"""MONAI's `CuCIM` transforms: cuCIM's own operations on arrays where it is installed, ours on tensors and elsewhere."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch
from monai import transforms as mt
from monai.config.type_definitions import KeysCollection
from monai.transforms.transform import Randomizable, Transform
from monai.utils import convert_to_dst_type

from voxelocity.monai.cucim_operations import OPERATIONS, Draws
from voxelocity_observe.core.errors import InputError

# A range of whole numbers this narrow holds next to nothing of an image.
_FEW_VALUES = 2.0


class CuCIM(Transform):  # type: ignore[misc]  # MONAI has no types
    """One of cuCIM's operations, by its name.

    NumPy and CuPy arrays go to cuCIM where it is installed, as in MONAI. Tensors, and arrays where cuCIM is missing,
    go through the same operation in torch, on the tensor's device; a warning says so once. The result is of the kind
    that came in, a MetaTensor with its metadata. Random operations use numpy's global random state.

    Args:
        name: of the operation, as `cucim.core.operations.expose.transform` has it.
        args: its parameters after the image.
        kwargs: likewise, by name.

    Raises:
        InputError: there is no such operation.
    """

    def __init__(self, name: str, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.name = name
        self.args = args
        self.kwargs = kwargs
        self._has_warned = False
        cucim = _cucim()
        self.transform: Callable[..., Any] | None = None if cucim is None else getattr(cucim, name, None)
        if self.transform is None and (cucim is not None or name not in OPERATIONS):
            known = sorted(OPERATIONS) if cucim is None else sorted(n for n in dir(cucim) if not n.startswith("_"))
            raise InputError(f"CuCIM: {name!r} is not an operation of cuCIM; choose from {', '.join(known)}")

    def __call__(self, data: Any) -> Any:
        """The operation's result for an image (c, h, w) or a batch (b, c, h, w), of the kind of `data`.

        Raises:
            InputError: `data` is neither an array nor a tensor, or not what the operation takes.
        """
        return self._apply(data, np.random)

    def _apply(self, data: Any, draws: Draws) -> Any:
        self._warn_of_whole_numbers(data)
        if isinstance(data, torch.Tensor):
            plain = data.as_tensor() if hasattr(data, "as_tensor") else data
            changed = self._in_torch(plain, draws)
            return convert_to_dst_type(changed, data, dtype=changed.dtype)[0]
        if self.transform is not None:
            return self.transform(data, *self.args, **self.kwargs)
        if not isinstance(data, np.ndarray):
            raise InputError(f"CuCIM: data is {type(data).__name__}; it must be an array or a tensor")
        _say_that_cucim_is_missing()
        return self._in_torch(torch.from_numpy(np.ascontiguousarray(data)), draws).numpy()

    def _warn_of_whole_numbers(self, data: Any) -> None:
        """Says once that a range such as -1 to 1 cannot be held by the type of the image, which cuCIM returns."""
        if self._has_warned or self.name != "scale_intensity_range" or np.dtype(_dtype_name(data)).kind not in "iu":
            return
        given = inspect.signature(OPERATIONS[self.name]).bind_partial(None, *self.args, **self.kwargs).arguments
        low, high = sorted((float(given.get("b_min", 0.0)), float(given.get("b_max", 1.0))))
        limits = np.iinfo(_dtype_name(data))
        if limits.min <= low and high <= limits.max and high - low > _FEW_VALUES:
            return
        self._has_warned = True
        warnings.warn(
            f"CuCIM: {self.name} returns the type of its image, and {limits.dtype} cannot hold values from {low:g} to "
            f"{high:g}: they become whole numbers, and negative ones may wrap around; make the image float32 before "
            "it, as by CastToTyped(keys, torch.float32)",
            stacklevel=4,
        )

    def _in_torch(self, image: torch.Tensor, draws: Draws) -> torch.Tensor:
        if self.name not in OPERATIONS:
            raise InputError(
                f"CuCIM: {self.name!r} takes only arrays, not tensors; put ToCupy before it, or choose from "
                f"{', '.join(sorted(OPERATIONS))}"
            )
        return OPERATIONS[self.name](image, *self.args, draws=draws, **self.kwargs)


class RandCuCIM(CuCIM, Randomizable):  # type: ignore[misc]
    """`CuCIM` for random operations, which draw from `self.R` wherever they run in torch.

    Args:
        name: see `CuCIM`.
        args: likewise.
        kwargs: likewise; `prob` is the operation's own, and `apply_prob` (default 1) the probability that it is called.

    Raises:
        InputError: there is no such operation.
    """

    def __init__(self, name: str, *args: Any, **kwargs: Any) -> None:
        self.apply_prob = float(kwargs.pop("apply_prob", 1.0))
        if not 0.0 <= self.apply_prob <= 1.0:
            raise InputError(f"RandCuCIM: apply_prob is {self.apply_prob}; choose from 0 to 1")
        CuCIM.__init__(self, name, *args, **kwargs)

    def __call__(self, data: Any) -> Any:
        """See `CuCIM`; where the operation is not called, `data` itself comes back."""
        if self.apply_prob < 1.0 and self.R.rand() >= self.apply_prob:
            return data
        return self._apply(data, self.R)


class CuCIMd(mt.CuCIMd):  # type: ignore[misc]
    """`CuCIM` for some keys of a dictionary.

    Args:
        keys: of the images.
        name: see `CuCIM`.
        allow_missing_keys: leave out keys that are not there.
        args: see `CuCIM`.
        kwargs: likewise.

    Raises:
        InputError: there is no such operation.
    """

    _array: type[CuCIM] = CuCIM

    def __init__(
        self, keys: KeysCollection, name: str, allow_missing_keys: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(keys, name, allow_missing_keys)
        self.trans = self._array(name, *args, **kwargs)


class RandCuCIMd(CuCIMd, Randomizable):  # type: ignore[misc]
    """`RandCuCIM` for some keys of a dictionary; as in MONAI, each key has its own draw.

    Args:
        keys: of the images.
        name: see `RandCuCIM`.
        allow_missing_keys: leave out keys that are not there.
        args: see `RandCuCIM`.
        kwargs: likewise.

    Raises:
        InputError: there is no such operation.
    """

    _array = RandCuCIM

    def set_random_state(self, seed: int | None = None, state: np.random.RandomState | None = None) -> RandCuCIMd:
        """Seeds what the operation draws from."""
        super().set_random_state(seed, state)
        self.trans.set_random_state(seed, state)
        return self


CuCIMD = CuCIMDict = CuCIMd
RandCuCIMD = RandCuCIMDict = RandCuCIMd


def _dtype_name(data: Any) -> str:
    """Of an array or a tensor, as NumPy calls it; of anything else that of no number."""
    return str(getattr(data, "dtype", "object")).removeprefix("torch.").replace("bfloat16", "float32")


def _cucim() -> ModuleType | None:
    try:
        import cucim.core.operations.expose.transform as operations
    except ImportError:
        return None
    module: ModuleType = operations
    return module


@functools.cache
def _say_that_cucim_is_missing() -> None:
    warnings.warn(
        "CuCIM: cucim and cupy are not installed, so its operations run in torch, on the CPU for arrays; install them, "
        "or pass tensors on a CUDA device",
        stacklevel=5,
    )
