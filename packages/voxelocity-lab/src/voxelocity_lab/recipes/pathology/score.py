"""How well tumor is separated from other tissue in patches and heat maps: the area under the ROC curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import rankdata

from voxelocity.step.precision import autocast
from voxelocity_lab.recipes.pathology.annotations import Annotation
from voxelocity_lab.recipes.pathology.heatmap import HeatMap, turned_answers
from voxelocity_lab.recipes.pathology.model import PatchNet
from voxelocity_lab.recipes.pathology.patches import any_within
from voxelocity_lab.recipes.pathology.settings import SQUARE, PathologyConfig
from voxelocity_lab.recipes.pathology.slides import Blocks, Box, Slide

Rating = Callable[[torch.Tensor], torch.Tensor]
"""A number (b,) for each of the patches (b, 3, y, x) from 0 to 1: the higher, the more likely tumor."""

_Scores = npt.NDArray[np.float64]
Rated = tuple[_Scores, npt.NDArray[np.bool_]]
"""Ratings of some patches, and whether each is tumor."""
# Of PatchCamelyon's patches of 96 pixels: 64 of them in a tile of 512.
_GAP_SHARE = 59 / 96


def roc_auc(scores: npt.ArrayLike, is_tumor: npt.ArrayLike) -> float:
    """The chance that a tumor has the higher score than something else, ties counting half; NaN if one is missing."""
    ranks, tumor = rankdata(scores), np.asarray(is_tumor, bool)
    num, others = int(tumor.sum()), int((~tumor).sum())
    if not num or not others:
        return math.nan
    return float((ranks[tumor].sum() - num * (num + 1) / 2.0) / (num * others))


def pooled_auc(rated: Sequence[Rated]) -> float:
    """The AUC over all of them together; NaN if there are none."""
    if not rated:
        return math.nan
    scores, tumor = zip(*rated, strict=True)
    return roc_auc(np.concatenate(scores), np.concatenate(tumor))


def patches_of(box: Box, side: int) -> Iterator[Box]:
    """Patches within a box, evenly spaced as in PatchCamelyon."""
    gap = max(1, int(side * _GAP_SHARE))
    for y in range(box.y, box.y + box.height - side + 1, gap):
        for x in range(box.x, box.x + box.width - side + 1, gap):
            yield Box(y=y, x=x, height=side, width=side)


def patch_scores(
    rating: Sequence[PatchNet] | Rating,
    slide: Slide,
    annotation: Annotation,
    config: PathologyConfig,
    *,
    box: Box,
    device: torch.device,
    blocks: Blocks,
) -> Rated:
    """Ratings of the patches of a box by the rule of PatchCamelyon, and whether each is tumor.

    Args:
        rating: networks on the device, in evaluation mode, whose logits are averaged; or another function of patches.
        slide: to be read.
        annotation: of it.
        config: of the recipe.
        box: in pixels of the finest level.
        device: to predict on.
        blocks: keeps pixels.
    """
    patch, factor = config.patch, slide.downsample_of(config.patch.level)
    low = Box(
        y=round(box.y / factor), x=round(box.x / factor),
        height=max(1, int(box.height / factor)), width=max(1, int(box.width / factor)),
    )  # fmt: skip
    is_near = any_within(annotation.mask(low, factor), SQUARE)
    boxes = list(patches_of(low, patch.side))
    half = patch.side // 2
    is_tumor = np.array([bool(is_near[square.y - low.y + half, square.x - low.x + half]) for square in boxes], bool)
    return scores_at(boxes, rating, slide, config, device=device, blocks=blocks), is_tumor


def scores_at(
    boxes: Sequence[Box],
    rating: Sequence[PatchNet] | Rating,
    slide: Slide,
    config: PathologyConfig,
    *,
    device: torch.device,
    blocks: Blocks,
) -> _Scores:
    """The rating of each patch, in pixels of the patches' level; networks see each in `heat.turns` ways."""
    scores = []
    with torch.inference_mode():
        for first in range(0, len(boxes), config.heat.batch_size):
            some = boxes[first : first + config.heat.batch_size]
            pixels = np.stack([blocks.read(slide, box, config.patch.level) for box in some])
            images = torch.from_numpy(pixels).to(device).float().div_(255.0)
            if callable(rating):
                scores.append(rating(images).cpu().double().numpy())
                continue
            with autocast(config.precision, device):
                answers = turned_answers(rating, images, config.heat.turns)
            middle = answers.shape[1] // 2
            scores.append(answers[:, middle, middle].cpu().double().numpy())
    return np.concatenate(scores or [np.zeros(0)])


def square_scores(heat: HeatMap, annotation: Annotation) -> Rated:
    """Probabilities of the squares that were seen, and whether at least half of each is tumor."""
    # Eight points along each side say what share of a square is tumor.
    fine = heat.step / 8.0
    rows, columns = heat.probability.shape
    low = Box(y=round(heat.box.y / fine), x=round(heat.box.x / fine), height=8 * rows, width=8 * columns)
    share = annotation.mask(low, fine).reshape(rows, 8, columns, 8).mean(axis=(1, 3))
    is_seen = np.isfinite(heat.probability)
    return heat.probability[is_seen].astype(np.float64), share[is_seen] >= 0.5
