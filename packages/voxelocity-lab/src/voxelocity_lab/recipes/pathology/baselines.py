"""What a network must beat, on the pieces that are scored: hand-made features, an untrained network, and darkness."""

from __future__ import annotations

from collections.abc import Sequence
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

HAND_MADE, UNTRAINED, INTENSITY, CHANCE = "hand-made features", "untrained network", "mean intensity", "chance"
# Of a piece, rated for a baseline: of this many, an AUC is known to a hundredth or two.
_MOST_SQUARES = 1000
_TENTH = 0.9


class Baselines:
    """Collects patches and squares of each scored piece, rated by baselines.

    Args:
        models: of which one at a time rates a piece: by its features, which were fitted to what its network was trained
            on, and by its network as it was before its first step.
        device: to compute on.
        blocks: keeps pixels.
    """

    def __init__(self, models: Sequence[TrainedPatches], *, device: torch.device, blocks: Blocks) -> None:
        self._where = {"device": device, "blocks": blocks}
        self._config = _unturned(models[0].config)
        self._ratings = {model.fold: ratings_of(model, device) for model in models}
        names = [
            name for name in self._ratings[models[0].fold] if all(name in found for found in self._ratings.values())
        ]
        self._rated: dict[str, tuple[list[Rated], list[Rated]]] = {name: ([], []) for name in names}

    def add(self, model: TrainedPatches, heat: HeatMap, slide: Slide, annotation: Annotation, box: Box) -> None:
        """Rates the patches of a piece, and at most 1,000 squares of its heat map; the same by each baseline."""
        where: dict[str, Any] = self._where
        boxes, is_tumor = squares_of(heat, annotation, self._config)
        for name, (patches, squares) in self._rated.items():
            rating = self._ratings[model.fold][name]
            patches.append(patch_scores(rating, slide, annotation, self._config, box=box, **where))
            squares.append((scores_at(boxes, rating, slide, self._config, **where), is_tumor))

    @property
    def is_darker(self) -> bool:
        """Whether tumor is darker than other tissue in these pieces: it is lighter than lymphocytes, for example."""
        return not pooled_auc(self._rated[INTENSITY][0]) < 0.5

    def rated(self) -> dict[str, tuple[list[Rated], list[Rated]]]:
        """The ratings of patches and of squares of each piece, by baseline.

        Intensity is taken in the direction in which tumor differs.
        """
        sign = 1.0 if self.is_darker else -1.0
        patches, squares = ([(sign * scores, is_tumor) for scores, is_tumor in kind] for kind in self._rated[INTENSITY])
        return self._rated | {INTENSITY: (patches, squares)}


def ratings_of(model: TrainedPatches, device: torch.device) -> dict[str, Sequence[PatchNet] | Rating]:
    """What rates patches next to a network, by name."""
    before: Sequence[PatchNet] = [model.before_training().to(device)]
    hand_made = {} if model.hand_made is None else {HAND_MADE: model.hand_made}
    return {**hand_made, UNTRAINED: before, INTENSITY: darkness}


def _unturned(config: PathologyConfig) -> PathologyConfig:
    """Turning a patch changes no baseline, or by chance alone."""
    return config.model_copy(update={"heat": config.heat.model_copy(update={"turns": 1})})


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
