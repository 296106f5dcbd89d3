"""MONAI's `sliding_window_inference` and `SlidingWindowInferer`: all of their arguments, less work per window.

An answer is weighted and added in one pass, weights are summed up axis by axis, and what is the same everywhere is not
weighted at all. Not here: `infer.window`, the engine of this package's own predictions, which shares `infer.blending`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from monai.data.meta_tensor import MetaTensor
from monai.inferers.inferer import SlidingWindowInferer as PeerSlidingWindowInferer
from monai.utils import (
    BlendMode,
    PytorchPadMode,
    convert_to_dst_type,
    ensure_tuple_rep,
    fall_back_tuple,
    look_up_option,
)

from voxelocity.infer.blending import importance
from voxelocity.infer.window_config import Blend
from voxelocity.monai.stitch import (
    WHERE,
    Canvas,
    Prediction,
    PredictorCall,
    Slab,
    WindowGrid,
    WindowPosition,
    add_weighted,
    as_spatial,
    packed,
)
from voxelocity_observe.core.errors import InputError

_Sizes = Sequence[int] | int
_Floats = Sequence[float] | float
_Device = torch.device | str | None
_Step = TypeVar("_Step")


def sliding_window_inference(
    inputs: torch.Tensor | MetaTensor,
    roi_size: _Sizes,
    sw_batch_size: int,
    predictor: Callable[..., Prediction],
    overlap: _Floats = 0.25,
    mode: BlendMode | str = BlendMode.CONSTANT,
    sigma_scale: _Floats = 0.125,
    padding_mode: PytorchPadMode | str = PytorchPadMode.CONSTANT,
    cval: float = 0.0,
    sw_device: _Device = None,
    device: _Device = None,
    progress: bool = False,
    roi_weight_map: torch.Tensor | None = None,
    process_fn: Callable[..., Any] | None = None,
    buffer_steps: int | None = None,
    buffer_dim: int = -1,
    with_coord: bool = False,
    *args: Any,
    **kwargs: Any,
) -> Prediction:
    """The predictor's answers to overlapping windows of `inputs`, blended; MONAI's function with the same arguments.

    Results equal MONAI 1.6.1's to about 1e-6 of the largest value in float32. The inputs do not change. Gradients
    follow the caller's grad mode.

    Args:
        inputs: (b, c, ...) floating point, any number of spatial axes; a MetaTensor's metadata come back.
        roi_size: voxels of a window; an axis that is None or not positive takes the input's.
        sw_batch_size: windows in one call of the predictor.
        predictor: windows (n, c, ...) to a tensor, or a sequence or mapping of tensors (n, k, ...), of the window's
            size or another.
        overlap: share of a window that the next one covers again, from 0 to below 1, for all axes or each.
        mode: "constant" (all voxels of a window weigh the same) or "gaussian" (less toward its edges).
        sigma_scale: standard deviation of the Gaussian as a share of the window's edge, for all axes or each.
        padding_mode: how inputs smaller than a window grow: "constant", "reflect", "replicate", "circular".
        cval: what "constant" fills in.
        sw_device: where the predictor gets its windows; the inputs' device by default.
        device: where the result is put together; the inputs' device by default.
        progress: draw tqdm's bar.
        roi_weight_map: weights of a window's voxels, instead of `mode`.
        process_fn: `(outputs, windows, weights) -> (outputs, weights)` after each call of the predictor. As in MONAI,
            the divisor is made of the weights that the first call returns.
        buffer_steps: this many steps of windows along `buffer_dim` are summed on `sw_device` before they are moved.
            Only the first of several answers comes back then, as in MONAI.
        buffer_dim: the spatial axis of these steps.
        with_coord: pass the predictor the windows' slices, a list of lists, as its second argument.
        args: more arguments of the predictor.
        kwargs: more keywords of the predictor; `condition`, of the inputs' size, is cut into windows too.

    Returns:
        A tensor, a tuple or a dict, as the predictor returned, of the inputs' kind and dtype.

    Raises:
        InputError: inputs, an argument or an answer of the predictor cannot be used.
    """
    num_axes = inputs.ndim - 2
    _check_arguments(inputs, roi_size, sw_batch_size)
    overlaps = _overlaps(overlap, num_axes)
    images, like = _plain(inputs)
    window = tuple(int(n) for n in fall_back_tuple(roi_size, tuple(images.shape[2:])))
    ends = _ends(images.shape[2:], window)
    pad = functools.partial(_pad, ends=ends, mode=padding_mode, value=cval)
    run_on, result_on = torch.device(sw_device or images.device), torch.device(device or images.device)
    padded, condition = pad(images), kwargs.pop("condition", None)
    grid = WindowGrid.of(len(padded), padded.shape[2:], window, overlaps)
    # Weights that are the same everywhere, or that cancel when the sum is divided, are not needed.
    is_plain = look_up_option(mode, BlendMode) == BlendMode.CONSTANT or grid.is_disjoint
    weights = None
    if process_fn is not None or roi_weight_map is not None or not is_plain:
        weights = _weights(roi_weight_map, window, mode, sigma_scale, run_on, images.dtype)
    calls = PredictorCall(
        images=padded,
        condition=None if condition is None else pad(condition),
        grid=grid,
        predictor=predictor,
        process=process_fn,
        # A process_fn may write to them.
        weights=weights.clone() if weights is not None and process_fn is not None else weights,
        with_coord=with_coord,
        args=args,
        kwargs=kwargs,
        device=run_on,
    )
    if buffer_steps is not None and buffer_steps > 0:
        slabs = Slab.all_of(grid, _axis(buffer_dim, num_axes), buffer_steps)
        outputs, keys = _in_slabs(calls, slabs, sw_batch_size, result_on, progress)
    else:
        outputs, keys = _in_order(calls, sw_batch_size, result_on, progress)
    inside = [_without_ends(output, ends, window, images.shape[2:]) for output in outputs]
    result: Prediction = convert_to_dst_type(packed(inside, keys), like, device=result_on)[0]
    return result


class SlidingWindowInferer(PeerSlidingWindowInferer):  # type: ignore[misc]  # MONAI has no types
    """`sliding_window_inference` with its arguments kept; MONAI's class, and an instance of it.

    Arguments that are not listed here are those of `sliding_window_inference`.

    Args:
        cache_roi_weight_map: keep the weights of a window in `roi_weight_map`, if roi_size gives every axis. If not,
            nothing is lost: the weights of the last windows' sizes are kept in any case.
        cpu_thresh: inputs with more voxels than this are put together on the CPU, unless `device` is given.

    Raises:
        InputError: an argument cannot be used.
    """

    def __init__(
        self,
        roi_size: _Sizes,
        sw_batch_size: int = 1,
        overlap: _Floats = 0.25,
        mode: BlendMode | str = BlendMode.CONSTANT,
        sigma_scale: _Floats = 0.125,
        padding_mode: PytorchPadMode | str = PytorchPadMode.CONSTANT,
        cval: float = 0.0,
        sw_device: _Device = None,
        device: _Device = None,
        progress: bool = False,
        cache_roi_weight_map: bool = False,
        cpu_thresh: int | None = None,
        buffer_steps: int | None = None,
        buffer_dim: int = -1,
        with_coord: bool = False,
    ) -> None:
        self.roi_size, self.sw_batch_size, self.overlap = roi_size, sw_batch_size, overlap
        self.mode, self.sigma_scale = look_up_option(mode, BlendMode), sigma_scale
        self.padding_mode, self.cval = padding_mode, cval
        self.sw_device, self.device, self.progress = sw_device, device, progress
        self.cpu_thresh, self.buffer_steps, self.buffer_dim = cpu_thresh, buffer_steps, buffer_dim
        self.with_coord = with_coord
        self.roi_weight_map: torch.Tensor | None = None
        if cache_roi_weight_map and isinstance(roi_size, Sequence) and all(n is not None and n > 0 for n in roi_size):
            window = tuple(roi_size)
            kept = _weights(None, window, self.mode, sigma_scale, torch.device(device or "cpu"), torch.float32)
            self.roi_weight_map = kept

    def __call__(
        self, inputs: torch.Tensor, network: Callable[..., Prediction], *args: Any, **kwargs: Any
    ) -> Prediction:
        """The network's answers to windows of the inputs, blended.

        Args:
            inputs: see `sliding_window_inference`.
            network: likewise, its predictor.
            args: more arguments of the network.
            kwargs: more keywords of the network; `condition` as there, and `device`, `buffer_steps` and `buffer_dim`
                instead of those given to the constructor.

        Raises:
            InputError: `condition` and the inputs differ in shape, or as in `sliding_window_inference`.
        """
        condition = kwargs.get("condition")
        if condition is not None and condition.shape != inputs.shape:
            raise InputError(
                f"{WHERE}: `condition` must match shape of `inputs` ({tuple(inputs.shape)}), but got "
                f"{tuple(condition.shape)}"
            )
        device = kwargs.pop("device", self.device)
        buffer_steps = kwargs.pop("buffer_steps", self.buffer_steps)
        buffer_dim = kwargs.pop("buffer_dim", self.buffer_dim)
        if device is None and self.cpu_thresh is not None and inputs.shape[2:].numel() > self.cpu_thresh:
            device = "cpu"
        return sliding_window_inference(
            inputs,
            self.roi_size,
            self.sw_batch_size,
            network,
            self.overlap,
            self.mode,
            self.sigma_scale,
            self.padding_mode,
            self.cval,
            self.sw_device,
            device,
            self.progress,
            self.roi_weight_map,
            None,
            buffer_steps,
            buffer_dim,
            self.with_coord,
            *args,
            **kwargs,
        )


_Outputs = tuple[list[torch.Tensor], tuple[Hashable, ...] | None]


def _in_order(calls: PredictorCall, batch_size: int, device: torch.device, progress: bool) -> _Outputs:
    """All outputs, window after window and image after image."""
    canvases: list[Canvas] = []
    keys = None
    for positions in _with_progress([*_batches(calls.grid.positions(), batch_size)], progress):
        outputs = calls(positions)
        pairs = list(zip(outputs.tensors, outputs.weights, strict=True))
        if not canvases:
            canvases = [Canvas(calls.grid, tensor, weights, calls.images.dtype, device) for tensor, weights in pairs]
            keys = outputs.keys
        for canvas, (tensor, weights) in zip(canvases, pairs, strict=True):
            for output, position in zip(tensor, positions, strict=True):
                canvas.add(output, position, weights)
    return [canvas.finish() for canvas in canvases], keys


def _in_slabs(
    calls: PredictorCall, slabs: Sequence[Slab], batch_size: int, device: torch.device, progress: bool
) -> _Outputs:
    """The first output, summed up slab by slab where the predictor runs, then moved."""
    dtype, grid = calls.images.dtype, calls.grid
    once = not any(a.image == b.image and b.start < a.stop for a, b in itertools.pairwise(slabs))
    canvas: Canvas | None = None
    keys = None
    for slab in _with_progress(slabs, progress):
        total: torch.Tensor | None = None
        for positions in _batches(slab.positions(grid), batch_size):
            outputs = calls(positions)
            tensor, weights = outputs.tensors[0], outputs.weights[0]
            if tuple(tensor.shape[2:]) != grid.window:
                raise InputError(
                    f"{WHERE}: with buffer_steps the predictor must return windows of {grid.window} at their own size, "
                    f"but it returned {tuple(tensor.shape[2:])}; leave buffer_steps out"
                )
            if canvas is None:
                canvas, keys = Canvas(grid, tensor, weights, dtype, device), outputs.keys
            if total is None:
                total = torch.zeros((tensor.shape[1], *slab.shape(grid)), dtype=dtype, device=calls.device)
            for output, position in zip(tensor, positions, strict=True):
                add_weighted(total[(slice(None), *slab.box(grid, position))], output, weights)
        assert canvas is not None, "a slab has at least one window"
        assert total is not None, "a slab has at least one window"
        canvas.add_slab(total, slab, once=once)
    assert canvas is not None, "there is at least one slab"
    return [canvas.finish()], keys


def _batches(positions: Iterable[WindowPosition], size: int) -> Iterator[list[WindowPosition]]:
    rest = iter(positions)
    while batch := list(itertools.islice(rest, size)):
        yield batch


def _with_progress(steps: Sequence[_Step], progress: bool) -> Iterable[_Step]:
    if not progress:
        return steps
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise InputError(
            f"{WHERE}: progress=True draws tqdm's bar, and tqdm is not installed; pip install tqdm"
        ) from error
    bar: Iterable[_Step] = tqdm(steps)
    return bar


def _check_arguments(inputs: torch.Tensor, roi_size: _Sizes, sw_batch_size: int) -> None:
    if isinstance(roi_size, Sequence) and len(roi_size) != inputs.ndim - 2:
        num = len(roi_size)
        raise InputError(
            f"{WHERE}: Inputs must have {num + 2} dimensions for {num}D roi_size (batch, channels and {num} spatial "
            f"ones), but got inputs of shape {tuple(inputs.shape)}; channels come first (EnsureChannelFirst), and a "
            "single image needs a batch axis: inputs[None]"
        )
    if inputs.ndim < 3:
        raise InputError(
            f"{WHERE}: inputs have shape {tuple(inputs.shape)}; they need axes of batch, channels and space"
        )
    if not (inputs.is_floating_point() or inputs.is_complex()):
        raise InputError(
            f"{WHERE}: inputs are {inputs.dtype}, and results are blended in the inputs' dtype; pass inputs.float()"
        )
    if sw_batch_size < 1:
        raise InputError(f"{WHERE}: sw_batch_size is {sw_batch_size}; it must be 1 or more")


def _overlaps(overlap: _Floats, num_axes: int) -> tuple[float, ...]:
    overlaps: tuple[float, ...] = ensure_tuple_rep(overlap, num_axes)
    if not all(0 <= share < 1 for share in overlaps):
        raise InputError(f"{WHERE}: overlap must be >= 0 and < 1, got {overlaps}.")
    return overlaps


def _axis(buffer_dim: int, num_axes: int) -> int:
    if not -num_axes <= buffer_dim < num_axes:
        raise InputError(f"{WHERE}: buffer_dim must be in [{-num_axes}, {num_axes - 1}], got {buffer_dim}.")
    return buffer_dim % num_axes


def _plain(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The inputs without metadata, and a model for the kind of results: a tensor without voxels, or the inputs."""
    if isinstance(inputs, MetaTensor):
        return inputs.as_tensor(), MetaTensor([]).copy_meta_from(inputs, copy_attr=False)
    return inputs, inputs


def _weights(
    given: torch.Tensor | None,
    window: tuple[int, ...],
    mode: BlendMode | str,
    sigma_scale: _Floats,
    device: torch.device,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Weights of a window's voxels, spatial axes only; shared with other calls, so do not change them."""
    if given is not None:
        spatial = as_spatial(torch.as_tensor(given), window)
        if any(n not in (1, side) for n, side in zip(spatial.shape, window, strict=True)):
            raise InputError(
                f"{WHERE}: roi_weight_map has shape {tuple(given.shape)}, and windows have {window}; they must be equal"
            )
        return spatial.to(device, dtype).expand(window)
    blend: Blend = "gaussian" if look_up_option(mode, BlendMode) == BlendMode.GAUSSIAN else "uniform"
    scales = tuple(float(scale) for scale in ensure_tuple_rep(sigma_scale, len(window)))
    weights: torch.Tensor = importance(window, blend, scales, device)
    return weights.to(dtype)


def _ends(shape: Sequence[int], window: Sequence[int]) -> list[tuple[int, int]]:
    """Voxels that an axis lacks before and after, to be as long as a window."""
    missing = [max(side - n, 0) for n, side in zip(shape, window, strict=True)]
    return [(n // 2, n - n // 2) for n in missing]


def _pad(images: torch.Tensor, ends: list[tuple[int, int]], mode: PytorchPadMode | str, value: float) -> torch.Tensor:
    if not any(map(any, ends)):
        return images
    sides = [side for axis in reversed(ends) for side in axis]
    return torch.nn.functional.pad(images, sides, mode=look_up_option(mode, PytorchPadMode), value=value)


def _without_ends(
    output: torch.Tensor, ends: list[tuple[int, int]], window: Sequence[int], shape: Sequence[int]
) -> torch.Tensor:
    """The output without what was padded, a view; an axis that was padded is one window long."""
    for axis, (before, after) in enumerate(ends):
        if before or after:
            scale = output.shape[axis + 2] / window[axis]
            start, stop = round(before * scale), round((before + shape[axis]) * scale)
            output = output.narrow(axis + 2, start, stop - start)
    return output
