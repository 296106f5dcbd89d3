"""Heat maps of whole slides: the probability of tumor in squares side by side, where there is tissue."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from scipy import ndimage

from voxelocity.data.feed import OrderedPrefetch
from voxelocity.step.precision import autocast
from voxelocity_lab.recipes.pathology.froc import Detection
from voxelocity_lab.recipes.pathology.model import PatchNet
from voxelocity_lab.recipes.pathology.settings import SQUARE, PathologyConfig
from voxelocity_lab.recipes.pathology.slides import Blocks, Box, Pixels, Slide
from voxelocity_lab.recipes.pathology.tissue import Tissue
from voxelocity_observe.core.errors import ScanError
from voxelocity_observe.core.whole_file import put_in_place

_Heat = npt.NDArray[np.float32]
# Squares along each side of what is read, and predicted densely, at once.
_BLOCK = 16
_READ_AHEAD = 4
_SMALLEST_LEVEL = 256


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """Of a slide.

    Attributes:
        probability: (rows, columns); NaN outside of tissue, and where pixels could not be read.
        step: pixels of the finest level between squares.
        box: that was predicted, in pixels of the finest level; square (0, 0) begins at its corner.
        num_seen: squares that the network saw.
        unread: what could not be read, in words.
    """

    probability: _Heat
    step: float
    box: Box
    num_seen: int
    unread: tuple[str, ...] = ()

    def lesions(self, *, least_probability: float, apart_pixels: float) -> list[Detection]:
        """The most probable square of each group of squares, and its center; groups nearer than this are one."""
        hot = np.nan_to_num(self.probability) >= least_probability
        if not hot.any():
            return []
        near = ndimage.distance_transform_edt(~hot) * self.step <= apart_pixels / 2.0
        labels, num = ndimage.label(near | hot, structure=np.ones((3, 3)))
        values = np.where(hot, self.probability, -1.0)
        found = ndimage.maximum_position(values, labels, range(1, num + 1))
        detections = [
            (
                float(self.probability[row, column]),
                self.box.x + (column + 0.5) * self.step,
                self.box.y + (row + 0.5) * self.step,
            )
            for row, column in found
        ]
        return sorted(detections, reverse=True)


def predict_slide(
    networks: Sequence[PatchNet],
    slide: Slide,
    config: PathologyConfig,
    *,
    box: Box,
    device: torch.device,
    num_threads: int,
    blocks: Blocks | None = None,
) -> HeatMap:
    """The heat map of a box of a slide; logits of several networks, and of all patches that a square lies in, are
    averaged.

    Args:
        networks: on the device, in evaluation mode.
        slide: to be read.
        config: of the recipe; `heat.is_dense` is the quick way.
        box: in pixels of the finest level.
        device: to predict on.
        num_threads: that read ahead.
        blocks: keeps pixels for a later call.
    """
    patch, side = config.patch, config.patch.side // SQUARE
    factor = slide.downsample_of(patch.level)
    step = SQUARE * factor
    rows, columns = max(1, int(box.height / step)), max(1, int(box.width / step))
    tissue = Tissue(slide, config.tissue)
    is_seen = np.array(
        [[tissue.has(_square(box, row, column, step)) for column in range(columns)] for row in range(rows)]
    )
    is_read, unread = np.zeros((rows, columns), bool), []
    # Of squares up to half a patch beyond the edges; a patch answers for all of its own.
    total, num = np.zeros((2, rows + side - 1, columns + side - 1), np.float32)
    predict = _dense if config.heat.is_dense else _by_patches
    kept = blocks or Blocks(config.cache_bytes)
    starts = [
        (row, column)
        for row in range(0, rows, _BLOCK)
        for column in range(0, columns, _BLOCK)
        if is_seen[row : row + _BLOCK, column : column + _BLOCK].any()
    ]
    margin = side // 2 * SQUARE

    def read(number: int) -> Pixels | ScanError:
        start = starts[number]
        part = is_seen[start[0] : start[0] + _BLOCK, start[1] : start[1] + _BLOCK]
        block = Box(
            y=round(box.y / factor) + start[0] * SQUARE - margin,
            x=round(box.x / factor) + start[1] * SQUARE - margin,
            height=part.shape[0] * SQUARE + 2 * margin,
            width=part.shape[1] * SQUARE + 2 * margin,
        )
        try:
            return kept.read(slide, block, patch.level)
        except ScanError as error:
            return error

    ahead = num_threads + _READ_AHEAD
    with OrderedPrefetch(read, stop=len(starts), num_threads=num_threads, num_ahead=ahead) as every:
        for start, pixels in zip(starts, every, strict=True):
            if isinstance(pixels, ScanError):
                unread.append(str(pixels))
                continue
            part = (slice(start[0], start[0] + _BLOCK), slice(start[1], start[1] + _BLOCK))
            with torch.inference_mode(), autocast(config.precision, device):
                answers = predict(networks, pixels, is_seen[part], config, device)
            is_read[part] = is_seen[part]
            at, reach = np.argwhere(is_seen[part]) + start, answers.shape[1]
            for y, x in np.ndindex(reach, reach):
                square = tuple((at + (side - reach) // 2 + (y, x)).T)
                total[square] += answers[:, y, x]
                num[square] += 1.0
    inside = (slice(side // 2, side // 2 + rows), slice(side // 2, side // 2 + columns))
    logits = np.where(is_read, total[inside] / np.maximum(num[inside], 1.0), np.nan)
    probability = (1.0 / (1.0 + np.exp(-logits))).astype(np.float32)
    return HeatMap(probability=probability, step=step, box=box, num_seen=int(is_read.sum()), unread=tuple(unread))


def _square(box: Box, row: int, column: int, step: float) -> Box:
    side = max(1, round(step))
    return Box(y=int(box.y + row * step), x=int(box.x + column * step), height=side, width=side)


def _by_patches(
    networks: Sequence[PatchNet],
    pixels: Pixels,
    is_seen: npt.NDArray[np.bool_],
    config: PathologyConfig,
    device: torch.device,
) -> _Heat:
    """Logits (n, rows, columns) of the squares of a patch around each square of a block that is looked at."""
    patch, size = config.patch, config.heat.batch_size
    whole = torch.from_numpy(pixels).to(device).float().div_(255.0)
    corners = (np.argwhere(is_seen) * SQUARE).tolist()
    found = []
    for first in range(0, len(corners), size):
        views = [whole[:, y : y + patch.side, x : x + patch.side] for y, x in corners[first : first + size]]
        found.append(turned_answers(networks, torch.stack(views), config.heat.turns).cpu().numpy())
    return np.concatenate(found)


def _dense(
    networks: Sequence[PatchNet],
    pixels: Pixels,
    is_seen: npt.NDArray[np.bool_],
    config: PathologyConfig,
    device: torch.device,
) -> _Heat:
    """Logits (n, 1, 1) of the squares of a block that are looked at, from one pass over all."""
    whole = torch.from_numpy(pixels).to(device).float().div_(255.0)[None]
    found: _Heat = turned_answers(networks, whole, config.heat.turns)[0].cpu().numpy()
    # The squares around are there to be seen only.
    margin = config.patch.side // SQUARE // 2
    inside = found[margin : found.shape[0] - margin, margin : found.shape[1] - margin]
    return inside[is_seen][:, None, None]


def _turned(image: torch.Tensor, turn: int) -> torch.Tensor:
    """(..., y, x) in one of eight ways."""
    turned = torch.rot90(image, turn % 4, dims=(-2, -1))
    return turned.flip(-1) if turn >= 4 else turned


def _turned_back(image: torch.Tensor, turn: int) -> torch.Tensor:
    image = image.flip(-1) if turn >= 4 else image
    return torch.rot90(image, -(turn % 4), dims=(-2, -1))


def turned_answers(networks: Sequence[PatchNet], images: torch.Tensor, turns: int) -> torch.Tensor:
    """The mean logits (b, rows, columns) of some networks for the squares of (b, 3, y, x), whose intensities go from 0
    to 1; each image is seen in the first `turns` of eight ways.
    """
    found = [
        _turned_back(network(_turned(images, turn)).float(), turn) for network in networks for turn in range(turns)
    ]
    return torch.stack(found).mean(dim=0)


def merged(maps: Sequence[HeatMap], slide: Slide) -> HeatMap:
    """One heat map of the whole slide from those of some of its boxes; of overlapping ones, the last counts."""
    step = maps[0].step
    height, width = slide.shapes[0]
    probability = np.full((max(1, int(height // step)), max(1, int(width // step))), np.nan, np.float32)
    for part in maps:
        top, left = round(part.box.y / step), round(part.box.x / step)
        target = probability[top : top + part.probability.shape[0], left : left + part.probability.shape[1]]
        found = part.probability[: target.shape[0], : target.shape[1]]
        target[np.isfinite(found)] = found[np.isfinite(found)]
    return HeatMap(
        probability=probability,
        step=step,
        box=Box(y=0, x=0, height=height, width=width),
        num_seen=sum(part.num_seen for part in maps),
        unread=tuple(text for part in maps for text in part.unread),
    )


def write_heat(heat: HeatMap, slide: Slide, path: Path) -> None:
    """Writes the heat map of a whole slide as a pyramidal TIFF of bytes, 255 for certain tumor.

    A pixel is a square of the heat map; its size, where that of the slide is known, is in the file, so that viewers
    lay it over the slide.

    Raises:
        OutputError: the file cannot be written.
    """
    import tifffile

    level = np.rint(255.0 * np.nan_to_num(heat.probability)).astype(np.uint8)
    file = io.BytesIO()
    with tifffile.TiffWriter(file, bigtiff=level.nbytes > 2**31) as writer:
        levels = [level]
        while max(levels[-1].shape) > _SMALLEST_LEVEL:
            last = levels[-1]
            padded = np.pad(last, ((0, last.shape[0] % 2), (0, last.shape[1] % 2)), mode="edge")
            squares = padded.reshape(padded.shape[0] // 2, 2, -1, 2)
            levels.append(np.rint(squares.mean(axis=(1, 3))).astype(np.uint8))
        # Without a size of pixels, the file has none either.
        per_cm, unit = (1e4 / (slide.micrometers * heat.step), "CENTIMETER") if slide.micrometers else (1.0, "NONE")
        for number, pixels in enumerate(levels):
            writer.write(
                pixels,
                subfiletype=0 if number == 0 else 1,
                tile=(256, 256),
                compression="deflate",
                photometric="minisblack",
                resolution=(per_cm / 2**number,) * 2,
                resolutionunit=unit,
            )
    put_in_place(path, file.getvalue())
