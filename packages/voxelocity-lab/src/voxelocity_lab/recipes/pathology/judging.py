"""Predicts the pieces of a data set, each by the networks that have not seen it, and rates what is annotated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from voxelocity_lab.recipes.call import Call
from voxelocity_lab.recipes.pathology.baselines import CHANCE, Baselines
from voxelocity_lab.recipes.pathology.dataset import OpenPieces, Piece
from voxelocity_lab.recipes.pathology.heatmap import HeatMap, predict_slide
from voxelocity_lab.recipes.pathology.model import TrainedPatches
from voxelocity_lab.recipes.pathology.page import TRAINED, PieceScore
from voxelocity_lab.recipes.pathology.resampling import Estimate, Kinds, judge, units_of
from voxelocity_lab.recipes.pathology.score import Rated, patch_scores, roc_auc, square_scores
from voxelocity_lab.recipes.pathology.slides import Blocks
from voxelocity_observe.core.host import cpu_budget
from voxelocity_observe.core.progress_bar import WorkProgress
from voxelocity_observe.core.quantities import count_text, listed

Maps = Mapping[Path, Sequence[tuple[Piece, HeatMap]]]
"""The pieces of each slide with their heat maps."""
# Networks learn with a zoom of 0.9 to 1.1.
_LIKE_WIDTH = 1.25


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What was predicted, and how well.

    Attributes:
        maps: of each slide.
        scores: of each piece that is annotated.
        aucs: of all of these together, of the networks and of what they must beat; empty if there are none.
        gains: by how much those of the networks are higher.
        units: what was drawn again for the intervals, in words.
        is_darker: whether tumor is darker than other tissue.
        notices: what could not be read or seen, in words.
    """

    maps: Maps
    scores: list[PieceScore]
    aucs: dict[str, Kinds] = field(default_factory=dict)
    gains: dict[str, Kinds] = field(default_factory=dict)
    units: str = ""
    is_darker: bool = True
    notices: list[str]


def judge_pieces(call: Call, opened: OpenPieces, models: Mapping[str, Sequence[TrainedPatches]]) -> Judged:
    """Predicts and rates pieces, and shows how far it is.

    Args:
        call: where to compute and to show it.
        opened: the pieces.
        models: by name of a piece, those that predict it: at least one, with their networks on the device.
    """
    several = {model.fold: model for chosen in models.values() for model in chosen}
    config = next(iter(several.values())).config
    blocks = Blocks(config.cache_bytes)
    baselines = Baselines(list(several.values()), device=call.device, blocks=blocks)
    maps: dict[Path, list[tuple[Piece, HeatMap]]] = defaultdict(list)
    scored: list[Piece] = []
    scores: list[PieceScore] = []
    rated: tuple[list[Rated], list[Rated]] = ([], [])
    notices: list[str] = []
    with WorkProgress(call.console) as progress:
        for piece in progress.each(opened.pieces, "predicting piece"):
            slide, box, annotation = opened.slide(piece), opened.box(piece), opened.annotation(piece)
            networks = [model.network for model in models[piece.name]]
            heat = predict_slide(
                networks, slide, config, box=box, device=call.device, num_threads=cpu_budget(), blocks=blocks
            )
            maps[piece.slide].append((piece, heat))
            notices += heat.unread or _blank(piece, heat, config.tissue.least_saturation)
            if annotation is None:
                continue
            patches = patch_scores(networks, slide, annotation, config, box=box, device=call.device, blocks=blocks)
            squares = square_scores(heat, annotation)
            baselines.add(models[piece.name][0], heat, slide, annotation, box)
            scored.append(piece)
            rated[0].append(patches)
            rated[1].append(squares)
            scores.append(_score(piece, patches, squares))
    if not scored:
        return Judged(maps=maps, scores=scores, notices=notices)
    units, words = units_of(scored)
    aucs, gains = judge({TRAINED: rated, **baselines.rated()}, units)
    chance = {CHANCE: (Estimate(value=0.5), Estimate(value=0.5))}
    return Judged(
        maps=maps, scores=scores, aucs=aucs | chance, gains=gains, units=words, is_darker=baselines.is_darker,
        notices=notices,
    )  # fmt: skip


def _score(piece: Piece, patches: Rated, squares: Rated) -> PieceScore:
    return PieceScore(
        name=piece.name,
        num_patches=len(patches[0]),
        patch_auc=roc_auc(*patches),
        square_auc=roc_auc(*squares),
        tumor_share=float(squares[1].mean()) if len(squares[1]) else 0.0,
    )


def _blank(piece: Piece, heat: HeatMap, least_saturation: float) -> list[str]:
    if heat.num_seen:
        return []
    return [
        f"No tissue was found in {piece.name}, so nothing was predicted: tissue has a color with a saturation above "
        f"{least_saturation:g}. If it is a gray image, train and predict with --set tissue.least_saturation=0"
    ]


def resolution_notices(models: Sequence[TrainedPatches], opened: OpenPieces) -> list[str]:
    """What to know of slides without a size of pixels, and of those whose cells the networks see at another size.

    A photograph never has one.
    """
    level = models[0].config.patch.level
    slides = {piece.slide: opened.slide(piece) for piece in opened.pieces}.values()
    unknown = [slide.path.name for slide in slides if slide.photograph is None and not slide.micrometers]
    notices = []
    if unknown:
        notices.append(
            f"{count_text(len(unknown), 'slide')} without a pixel size ({listed(unknown)}): lesions there are "
            "neither merged by distance nor scored; give it in a column micrometers of slides.csv"
        )
    known = [width for model in models for width in model.micrometers]
    if not known:
        return notices
    widths = {slide.path.name: slide.micrometers * slide.downsample_of(level) for slide in slides if slide.micrometers}
    least, most = min(known), max(known)
    others = [name for name, width in widths.items() if not least / _LIKE_WIDTH <= width <= most * _LIKE_WIDTH]
    if others:
        notices.append(
            f"{count_text(len(others), 'slide')} with another pixel size than in training ({listed(others)}): "
            f"{widths[others[0]]:.3g} micrometers for {least:.3g} to {most:.3g}, so cells look larger or smaller "
            "than in training, and heat maps may be wrong; convert to the same size"
        )
    return notices
