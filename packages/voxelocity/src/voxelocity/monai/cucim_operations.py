"""cuCIM's image operations in torch, for tensors on any device and for machines without cuCIM.

Parameters, their order, rounding and dtypes are those of `cucim.core.operations.expose.transform`. Images are (c, h, w)
or batches (b, c, h, w); flips and turns take any shape. Random numbers come from `draws`, which cuCIM lacks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Number
from typing import Any, Protocol

import torch

from voxelocity_observe.core.errors import InputError

Interval = float | Sequence[float]
_Axes = int | Sequence[int]
# Luminance of red, green and blue in 16 bits, as in Pillow.
_RED, _GREEN, _BLUE, _HALF = 19595, 38470, 7471, 0x8000


class Draws(Protocol):
    """What gives random numbers: a `numpy.random.RandomState`, or the module `numpy.random`."""

    def rand(self) -> float: ...
    def uniform(self, low: float, high: float) -> float: ...
    def randint(self, low: int) -> int: ...
    def permutation(self, x: int) -> Any: ...


def image_flip(img: torch.Tensor, spatial_axis: _Axes, *, draws: Draws) -> torch.Tensor:
    """The image reversed along these axes, where the channel axis is 0; a copy."""
    return torch.flip(img, [spatial_axis] if isinstance(spatial_axis, int) else list(spatial_axis))


def image_rotate_90(img: torch.Tensor, k: int, spatial_axis: Sequence[int], *, draws: Draws) -> torch.Tensor:
    """The image turned by `k` quarter turns from the first of two axes toward the second; may share memory."""
    return torch.rot90(img, k, list(spatial_axis))


def rand_image_flip(img: torch.Tensor, spatial_axis: _Axes, prob: float = 0.1, *, draws: Draws) -> torch.Tensor:
    """`image_flip` with this probability, or the image itself."""
    return image_flip(img, spatial_axis, draws=draws) if draws.rand() < prob else img


def rand_image_rotate_90(
    img: torch.Tensor, spatial_axis: Sequence[int], prob: float = 0.1, max_k: int = 3, *, draws: Draws
) -> torch.Tensor:
    """`image_rotate_90` by 1 to `max_k` quarter turns with this probability, or the image itself."""
    k = int(draws.randint(max_k)) + 1
    return image_rotate_90(img, k, spatial_axis, draws=draws) if draws.rand() < prob else img


def scale_intensity_range(
    img: torch.Tensor, b_max: float, b_min: float, a_max: float, a_min: float, clip: bool = False, *, draws: Draws
) -> torch.Tensor:
    """Intensities moved from [a_min, a_max] to [b_min, b_max], and with `clip` kept there; computed in float32."""
    if a_max == a_min:
        raise InputError(f"scale_intensity_range: a_min and a_max are both {a_min}; give a range to scale from")
    slope = (b_max - b_min) / (a_max - a_min)
    scaled = img.to(torch.float32) * slope - (a_min * slope - b_min)
    return (scaled.clamp_(b_min, b_max) if clip else scaled).to(img.dtype)


def normalize_data(
    img: torch.Tensor, norm_constant: float, min_value: float, max_value: float, type: str = "range", *, draws: Draws
) -> torch.Tensor:
    """Intensities above `min_value`, or their arctangent, times norm_constant / (max - min); computed in float32."""
    if max_value == min_value:
        raise InputError(f"normalize_data: min_value and max_value are both {min_value}; give a range")
    if type not in ("range", "atan"):
        raise InputError(f"normalize_data: type {type!r} is not known; choose 'range' or 'atan'")
    above = img.to(torch.float32) - min_value
    factor = norm_constant / (max_value - min_value)
    return (above.atan_() if type == "atan" else above).mul_(factor).to(img.dtype)


def zoom(img: torch.Tensor, zoom_factor: Sequence[float], *, draws: Draws) -> torch.Tensor:
    """The image zoomed about its center, at its own size; edge values fill the border where it became smaller.

    Each voxel is the mean of the voxels that it covers, as in cuCIM's kernels; computed in float32.
    """
    _check_image(img, "zoom")
    height, width = img.shape[-2:]
    size = math.floor(height * zoom_factor[0]), math.floor(width * zoom_factor[1])
    if size == (height, width):
        return img
    if (size[0] > height) != (size[1] > width) or size[0] == height or size[1] == width or min(size) < 1:
        raise InputError(
            f"zoom: factors {tuple(zoom_factor)} make {size} of {(height, width)}; both axes must grow or both shrink"
        )
    zoomed = torch.nn.functional.adaptive_avg_pool2d(img.to(torch.float32), size)
    top, left = abs(height - size[0]) // 2, abs(width - size[1]) // 2
    if size[0] > height:
        zoomed = zoomed[..., top : top + height, left : left + width]
    else:
        ends = left, width - size[1] - left, top, height - size[0] - top
        zoomed = torch.nn.functional.pad(zoomed, ends, mode="replicate")
    return zoomed.to(img.dtype).contiguous()


def rand_zoom(
    img: torch.Tensor, min_zoom: Interval = 0.9, max_zoom: Interval = 1.1, prob: float = 0.1, *, draws: Draws
) -> torch.Tensor:
    """`zoom` by a factor between these, one for both axes or one each, with this probability, or the image itself."""
    if draws.rand() >= prob:
        return img
    if isinstance(min_zoom, Sequence) and isinstance(max_zoom, Sequence):
        factors = [draws.uniform(low, high) for low, high in zip(min_zoom, max_zoom, strict=True)]
    elif isinstance(min_zoom, Sequence) or isinstance(max_zoom, Sequence):
        raise InputError(
            f"rand_zoom: min_zoom {min_zoom} and max_zoom {max_zoom} must be both numbers or both sequences"
        )
    else:
        factors = [draws.uniform(min_zoom, max_zoom)]
    return zoom(img, factors if len(factors) == 2 else factors[:1] * 2, draws=draws)


def color_jitter(
    img: torch.Tensor,
    brightness: Interval = 0,
    contrast: Interval = 0,
    saturation: Interval = 0,
    hue: Interval = 0,
    *,
    draws: Draws,
) -> torch.Tensor:
    """Brightness, contrast, saturation and hue changed in random order, each by a factor drawn from its interval.

    Images have three channels (red, green, blue) and values of one byte: others are cast to it, as in cuCIM, and
    come back as float32. A number n means the interval from 1 - n (hue: -n) to 1 + n (hue: n).
    """
    _check_image(img, "color_jitter")
    intervals = [
        _interval(brightness, "brightness"),
        _interval(contrast, "contrast"),
        _interval(saturation, "saturation"),
        _interval(hue, "hue", center=0.0, bounds=(-0.5, 0.5)),
    ]
    changes = (_brightness, _contrast, _saturation, _hue)
    order = [int(index) for index in draws.permutation(4)]
    factors = [None if interval is None else float(draws.uniform(*interval)) for interval in intervals]
    values = img.to(torch.uint8).to(torch.float32)
    if any(factor is not None for factor in factors) and img.shape[-3] != 3:
        raise InputError(f"color_jitter: image shape {tuple(img.shape)} lacks the three channels of a color image")
    for index in order:
        factor = factors[index]
        if factor is not None:
            values = changes[index](values, factor)
    return values.to(torch.uint8) if img.dtype == torch.uint8 else values


def _brightness(rgb: torch.Tensor, factor: float) -> torch.Tensor:
    return _bytes(rgb * factor)


def _contrast(rgb: torch.Tensor, factor: float) -> torch.Tensor:
    grey = (_luminance(rgb).mean(dim=(-2, -1), keepdim=True) + 0.5).floor_()
    return _bytes(grey + factor * (rgb - grey))


def _saturation(rgb: torch.Tensor, factor: float) -> torch.Tensor:
    grey = _luminance(rgb)
    return _bytes(grey + factor * (rgb - grey))


def _hue(rgb: torch.Tensor, factor: float) -> torch.Tensor:
    """Through hue and saturation in bytes; gray becomes black, as in cuCIM."""
    red, green, blue = rgb.unbind(-3)
    top, bottom = rgb.amax(-3), rgb.amin(-3)
    spread = top - bottom
    safe = spread.clamp_min(1.0)
    from_red, from_green, from_blue = (top - red) / safe, (top - green) / safe, (top - blue) / safe
    angle = torch.where(
        red == top,
        from_blue - from_green,
        torch.where(green == top, 2.0 + from_red - from_blue, 4.0 + from_green - from_red),
    )
    hue = torch.where(spread == 0, 0.0, torch.fmod(angle / 6.0 + 1.0, 1.0) * 255.0).round_()
    saturation = torch.where(spread == 0, 0.0, spread / top.clamp_min(1.0) * 255.0).round_()
    hue = torch.trunc(hue + factor * 255.0) % 256.0
    sector = hue * 6.0 / 255.0
    part, share = sector - sector.floor(), saturation / 255.0
    low = _whole(top * (1.0 - share))
    falling = _whole(top * (1.0 - share * part))
    rising = _whole(top * (1.0 - share * (1.0 - part)))
    which = sector.floor().to(torch.int64) % 6
    choices = [
        (top, rising, low),
        (falling, top, low),
        (low, top, rising),
        (low, falling, top),
        (rising, low, top),
        (top, low, falling),
    ]
    table = torch.stack([torch.stack(choice, -3) for choice in choices])
    index = which.unsqueeze(-3).expand(rgb.shape)[None]
    return torch.where((saturation == 0).unsqueeze(-3), 0.0, table.gather(0, index)[0])


def _luminance(rgb: torch.Tensor) -> torch.Tensor:
    red, green, blue = rgb.to(torch.int64).unbind(-3)
    weighted = (red * _RED + green * _GREEN + blue * _BLUE + _HALF) >> 16
    return weighted.to(torch.float32).unsqueeze(-3)


def _bytes(values: torch.Tensor) -> torch.Tensor:
    return values.clamp_(0.0, 255.0).trunc_()


def _whole(values: torch.Tensor) -> torch.Tensor:
    # Halves away from zero, as CUDA's roundf; torch rounds them to even.
    return (values + 0.5).floor_().clamp_(0.0, 255.0)


def _interval(
    value: Interval, name: str, center: float = 1.0, bounds: tuple[float, float] = (0.0, math.inf)
) -> tuple[float, float] | None:
    """The interval that a factor is drawn from, or None if it changes nothing."""
    if isinstance(value, Number):
        if value < 0:  # type: ignore[operator]  # numbers of Python and numpy compare
            raise InputError(f"color_jitter: {name} is {value}; a single number must be 0 or more")
        low, high = center - float(value), center + float(value)  # type: ignore[arg-type]
        low = low if center == 0.0 else max(low, 0.0)
    else:
        low, high = value  # type: ignore[misc]
    if not bounds[0] <= low <= high <= bounds[1]:
        raise InputError(
            f"color_jitter: {name} {value} is not valid; choose from {bounds[0]} to {bounds[1]}, low first"
        )
    return None if low == high == center else (low, high)


def _check_image(img: torch.Tensor, name: str) -> None:
    if img.ndim not in (3, 4):
        raise InputError(f"{name}: an image has shape {tuple(img.shape)}; it must be (c, h, w) or a batch (b, c, h, w)")


OPERATIONS = {
    operation.__name__: operation
    for operation in (
        color_jitter,
        image_flip,
        image_rotate_90,
        normalize_data,
        rand_image_flip,
        rand_image_rotate_90,
        rand_zoom,
        scale_intensity_range,
        zoom,
    )
}
"""All that cuCIM exposes to MONAI, by name."""
