"""What needs no training, on the pieces that are scored: an untrained network, how dark a patch is, and chance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata

from voxelocity_lab.recipes.pathology.annotations import Annotation
from voxelocity_lab.recipes.pathology.froc import Detection
from voxelocity_lab.recipes.pathology.heatmap import HeatMap
from voxelocity_lab.recipes.pathology.model import PatchNet, TrainedPatches
from voxelocity_lab.recipes.pathology.score import Rated, Rating, patch_scores, pooled_auc, scores_at, square_scores
from voxelocity_lab.recipes.pathology.settings import SQUARE, PathologyConfig
from voxelocity_lab.recipes.pathology.slides import Blocks, Box, Slide
from voxelocity_lab.recipes.pathology.tissue import Tissue

INTENSITY, CHANCE = "mean intensity", "chance"
# Of a piece, rated for a baseline: of this many, an AUC is known to a hundredth or two.
_MOST_SQUARES = 1000
_TENTH = 0.9


class Baselines:
    """Collects patches and squares of each scored piece, rated without training.

    Args:
        trained: whose network, as it was before its first step, is a baseline.
        device: to compute on.
        blocks: keeps pixels.
    """

    def __init__(self, trained: TrainedPatches, *, device: torch.device, blocks: Blocks) -> None:
        self._config, self._where = trained.config, {"device": device, "blocks": blocks}
        self._ratings = ratings_of(trained, device)
        self._of_patches: dict[str, list[Rated]] = {name: [] for name in self._ratings}
        self._of_squares: dict[str, list[Rated]] = {name: [] for name in self._ratings}

    def add(self, heat: HeatMap, slide: Slide, annotation: Annotation, box: Box) -> None:
        """Rates the patches of a piece, and at most 1,000 squares of its heat map; the same by each baseline."""
        where: dict[str, Any] = self._where
        boxes, is_tumor = squares_of(heat, annotation, self._config)
        for name, rating in self._ratings.items():
            self._of_patches[name].append(patch_scores(rating, slide, annotation, self._config, box=box, **where))
            self._of_squares[name].append((scores_at(boxes, rating, slide, self._config, **where), is_tumor))

    @property
    def is_darker(self) -> bool:
        """Whether tumor is darker than other tissue in these pieces: it is lighter than lymphocytes, for example."""
        return not pooled_auc(self._of_patches[INTENSITY]) < 0.5

    def aucs(self) -> dict[str, tuple[float, float]]:
        """AUC of patches and of squares, by baseline; empty where no piece was scored.

        Intensity is taken in the direction in which tumor differs.
        """
        if not any(self._of_patches.values()):
            return {}
        found = {
            name: (pooled_auc(self._of_patches[name]), pooled_auc(self._of_squares[name])) for name in self._ratings
        }
        if not self.is_darker:
            patches, squares = found[INTENSITY]
            found[INTENSITY] = 1.0 - patches, 1.0 - squares
        return found | {CHANCE: (0.5, 0.5)}


def ratings_of(trained: TrainedPatches, device: torch.device) -> dict[str, PatchNet | Rating]:
    """What rates patches without training, by name."""
    return {"untrained network": trained.before_training().to(device), INTENSITY: darkness}


def darkness(images: torch.Tensor) -> torch.Tensor:
    """How dark patches (b, 3, y, x) from 0 to 1 are."""
    return 1.0 - images.mean(dim=(1, 2, 3))


def find_spots(
    heat: HeatMap, slide: Slide, config: PathologyConfig, *, apart_pixels: float, is_darker: bool
) -> list[Detection]:
    """What the darkest tenth of the squares of a heat map would list as lesions, or the lightest: a trivial way."""
    tissue, is_seen = Tissue(slide, config.tissue), np.isfinite(heat.probability)
    if not is_seen.any():
        return []
    rows, columns = (
        np.minimum((start + (np.arange(num) + 0.5) * heat.step) / tissue.downsample, size - 1).astype(int)
        for start, num, size in zip(
            (heat.box.y, heat.box.x), heat.probability.shape, tissue.darkness.shape, strict=True
        )
    )
    shade = tissue.darkness[np.ix_(rows, columns)].astype(np.int16) * (1 if is_darker else -1)
    ranks = np.full(heat.probability.shape, np.nan, np.float32)
    ranks[is_seen] = rankdata(shade[is_seen]) / is_seen.sum()
    return replace(heat, probability=ranks).lesions(least_probability=_TENTH, apart_pixels=apart_pixels)


def squares_of(heat: HeatMap, annotation: Annotation, config: PathologyConfig) -> tuple[list[Box], Any]:
    """Patches around at most 1,000 squares of a heat map, in pixels of their level, and whether each is tumor."""
    _, is_tumor = square_scores(heat, annotation)
    where = np.argwhere(np.isfinite(heat.probability))
    chosen = np.sort(np.random.default_rng(0).permutation(len(where))[:_MOST_SQUARES])
    side, factor = config.patch.side, heat.step / SQUARE
    margin = (side - SQUARE) // 2
    top, left = round(heat.box.y / factor) - margin, round(heat.box.x / factor) - margin
    boxes = [
        Box(y=top + int(row) * SQUARE, x=left + int(column) * SQUARE, height=side, width=side)
        for row, column in where[chosen]
    ]
    return boxes, is_tumor[chosen]
