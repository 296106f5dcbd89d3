"""Patches for training: drawn evenly from tumor and other tissue, cut and changed by the engine for volumes.

A patch is a volume that is one voxel deep, so flips, quarter turns, rotations, zoom and color come from
`data.augment`, in the same passes as for scans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from voxelocity.core.batch import Batch, Draw
from voxelocity.core.region import Region
from voxelocity.core.rng import generator
from voxelocity.core.volume import Scaling
from voxelocity.data.augment import Effects, Source, augment, needed_box, sample
from voxelocity_lab.recipes.pathology.annotations import Mask
from voxelocity_lab.recipes.pathology.dataset import OpenPieces, Piece
from voxelocity_lab.recipes.pathology.settings import SQUARE, PathologyConfig
from voxelocity_lab.recipes.pathology.slides import Blocks, Box
from voxelocity_lab.recipes.pathology.tissue import Tissue
from voxelocity_observe.core.errors import DatasetError

# Of the masks that say where patches may be, along each side: at 4 bytes for each place, 64 MiB at the most.
_MOST_PLACES = 4096
_SCALING = (Scaling(1.0 / 255.0, 0.0),) * 3
# Coordinates of the engine begin at 0, and a patch may begin before its slide does.
_FRAME = 1 << 20


class Positions:
    """Where the centers of patches of one class may lie, in all pieces, and how to draw one of them.

    Args:
        masks: of each piece.
    """

    def __init__(self, masks: Sequence[Mask]) -> None:
        self._masks = masks
        rows = [mask.sum(axis=1) for mask in masks]
        self._first_rows = np.cumsum([0, *(len(row) for row in rows)])
        self._ends = np.cumsum(np.concatenate(rows)) if rows else np.zeros(0, int)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, number: int) -> tuple[int, int, int]:
        """The piece of a place, and its row and column in the piece's mask."""
        line = int(np.searchsorted(self._ends, number, side="right"))
        piece = int(np.searchsorted(self._first_rows, line, side="right")) - 1
        row = line - int(self._first_rows[piece])
        before = int(self._ends[line - 1]) if line else 0
        return piece, row, int(np.flatnonzero(self._masks[piece][row])[number - before])


class PatchBatches:
    """Batch `n` as a function of the seed and `n`: image (b, 3, y, x) from 0 to 1, label (b, rows, columns).

    Each square of a patch has its label, 1 for tumor, from the mask that was turned and scaled with the patch.

    Args:
        pieces: to draw from; all must have annotations.
        blocks: keeps pixels.
        config: of the recipe.
        seed: of places and changes.

    Raises:
        DatasetError: a piece has no annotation, or tumor or other tissue is missing.
    """

    def __init__(self, pieces: OpenPieces, blocks: Blocks, config: PathologyConfig, *, seed: int) -> None:
        self._pieces, self._blocks, self._config, self._seed = pieces, blocks, config, seed
        self._effects = Effects(config.augment)
        tumor, other = [], []
        self._steps: list[float] = []
        area = 0.0
        for piece in pieces.pieces:
            box = pieces.box(piece)
            area += box.height * box.width / self._factor(piece) ** 2
            is_tumor, is_other, step = self._find_positions(piece)
            tumor.append(is_tumor)
            other.append(is_other)
            self._steps.append(step)
        self._num_patches = max(1, int(area // config.patch.side**2))
        self._classes = Positions(other), Positions(tumor)
        for kind, positions in zip(("other tissue", "tumor"), self._classes, strict=True):
            if not len(positions):
                raise DatasetError(
                    f"pathology: the pieces to train on hold no {kind}; a classifier needs both. Tumor is what a mask "
                    "has above half of its range, or what outlines enclose; other tissue has a color, of a saturation "
                    f"above {config.tissue.least_saturation:g} (tissue.least_saturation=0 takes gray images too); and "
                    f"both lie at least {SQUARE // 2} pixels from the edges of a piece"
                )

    def __len__(self) -> int:
        """Patches of an epoch: as many as fit next to each other into the pieces."""
        return self._num_patches

    def _factor(self, piece: Piece) -> float:
        """Pixels of the finest level along one of a patch."""
        return self._pieces.slide(piece).downsample_of(self._config.patch.level)

    def _find_positions(self, piece: Piece) -> tuple[Mask, Mask, float]:
        """Where centers are tumor or other tissue, on a grid with this many pixels of the finest level between."""
        annotation, slide, box = self._pieces.annotation(piece), self._pieces.slide(piece), self._pieces.box(piece)
        if annotation is None:
            raise DatasetError(f"pathology: {piece.name} has no annotation, so it cannot be trained on")
        step = max(self._factor(piece), max(box.height, box.width) / _MOST_PLACES)
        low = Box(
            y=round(box.y / step), x=round(box.x / step),
            height=max(1, round(box.height / step)), width=max(1, round(box.width / step)),
        )  # fmt: skip
        is_tumor = annotation.mask(low, step)
        side = max(1, round(SQUARE * self._factor(piece) / step))
        is_positive = any_within(is_tumor, side)
        tissue = Tissue(slide, self._config.tissue)
        rows = np.minimum((np.arange(low.height) + low.y + 0.5) * step / tissue.downsample, tissue.mask.shape[0] - 1)
        columns = np.minimum((np.arange(low.width) + low.x + 0.5) * step / tissue.downsample, tissue.mask.shape[1] - 1)
        is_tissue = tissue.mask[np.ix_(rows.astype(int), columns.astype(int))]
        half = side // 2
        fits = np.zeros_like(is_positive)
        fits[half : low.height - half or None, half : low.width - half or None] = True
        return is_positive & fits, is_tissue & ~is_positive & fits, step

    def draw(self, step: int) -> tuple[list[Draw], list[Box], npt.NDArray[np.float32]]:
        """Of a batch: the draws, where each patch lies in pixels of its level, and whether it is tumor."""
        patch, size = self._config.patch, self._config.fit.batch_size
        rng = generator(self._seed, stage="places", draw=step)
        is_tumor = np.zeros(size, np.float32)
        is_tumor[: round(patch.tumor_share * size)] = 1.0
        rng.shuffle(is_tumor)
        numbers = rng.random((size, 3))
        draws, boxes = [], []
        for index in range(size):
            positions = self._classes[int(is_tumor[index])]
            number, row, column = positions[int(numbers[index, 0] * len(positions))]
            piece, gap = self._pieces.pieces[number], self._steps[number]
            box, factor = self._pieces.box(piece), self._factor(piece)
            # Anywhere within its place on the grid.
            y = (round(box.y / gap) + row + numbers[index, 1]) * gap / factor - patch.side / 2.0
            x = (round(box.x / gap) + column + numbers[index, 2]) * gap / factor - patch.side / 2.0
            boxes.append(Box(y=int(np.floor(y)), x=int(np.floor(x)), height=patch.side, width=patch.side))
            draws.append(
                Draw(case_id=piece.name, case=number, epoch=step * size // len(self), draw=step * size + index)
            )
        return draws, boxes, is_tumor

    def __call__(self, step: int, share: slice = slice(None)) -> Batch:
        """The patches `share` of batch `step`. Safe from several threads."""
        draws, boxes, _ = self.draw(step)
        draws, boxes = draws[share], boxes[share]
        side = self._config.patch.side
        config = self._config.augment
        params = sample(draws, seed=self._seed, num_channels=3, patch_shape=(1, side, side), config=config)
        frame = (1, 2 * _FRAME, 2 * _FRAME)
        sources, regions = [], []
        for row, (draw, box) in enumerate(zip(draws, boxes, strict=True)):
            start = 0, box.y + _FRAME, box.x + _FRAME
            region = Region(start, (1, start[1] + side, start[2] + side))
            needed = needed_box(params, row, region, frame)
            (_, y, x), (_, height, width) = needed.start, needed.shape
            read = Box(y=y - _FRAME, x=x - _FRAME, height=height, width=width)
            piece = self._pieces.pieces[draw.case]
            annotation, factor = self._pieces.annotation(piece), self._factor(piece)
            assert annotation is not None, "checked before"
            pixels = self._blocks.read(self._pieces.slide(piece), read, self._config.patch.level)
            mask = annotation.mask(read, factor)
            sources.append(
                Source(image=_with_depth(pixels), label=_with_depth(mask), start=needed.start, scaling=_SCALING)
            )
            regions.append(region)
        image = torch.empty((len(draws), 3, 1, side, side))
        label_of_pixels = torch.empty((len(draws), 1, side, side), dtype=torch.uint8)
        augment(sources, regions, params, image, label_of_pixels, engine=config.engine)
        self._effects.apply(draws, image, label_of_pixels, seed=self._seed)
        squares = label_of_pixels.numpy().reshape(len(draws), side // SQUARE, SQUARE, side // SQUARE, SQUARE)
        label = torch.from_numpy(squares.max(axis=(2, 4)).astype(np.float32))
        return Batch(image=image[:, :, 0], label=label, draws=tuple(draws), regions=(), step=step)


def _with_depth(plane: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """A picture (..., y, x) as a volume (..., 2, y, x) whose second plane nothing shows.

    With it, all neighbors of a pixel lie within the volume, which the engine warps 14 times as fast as a border.
    """
    deep = np.zeros((*plane.shape[:-2], 2, *plane.shape[-2:]), np.uint8)
    deep[..., 0, :, :] = plane
    return deep


def any_within(mask: Mask, side: int) -> Mask:
    """Whether any pixel is set in the square of this side around each one, which lies right of and below its middle."""
    half = side // 2
    sums = np.zeros((mask.shape[0] + side, mask.shape[1] + side), np.int32)
    padded = np.pad(mask, ((half, side - half - 1), (half, side - half - 1)))
    sums[1:, 1:] = np.cumsum(np.cumsum(padded, axis=0, dtype=np.int32), axis=1)
    inside = sums[side:, side:] - sums[:-side, side:] - sums[side:, :-side] + sums[:-side, :-side]
    return inside[: mask.shape[0], : mask.shape[1]] > 0
