"""What came out, as a page: slides with their heat maps, and the figures of each piece."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from voxelocity.core.learning import UNLEARNED
from voxelocity.report.pictures import png_data_uri
from voxelocity_lab.recipes.pages import BASELINES, BASELINES_KEY, number_text, training_blocks, unlearned_verdict
from voxelocity_lab.recipes.pathology.annotations import Mask
from voxelocity_lab.recipes.pathology.baselines import CHANCE
from voxelocity_lab.recipes.pathology.slides import Pixels
from voxelocity_observe.core.plain import plain_data
from voxelocity_observe.core.quantities import count_text, duration_text
from voxelocity_observe.document.blocks import Card, Document, LegendEntry, Section, SliceFilm, Slices, Table, Text

MOST_DRAWN = 6
PICTURE_SIDE = 900
"""Pixels of a drawn slide along its longer side, at the most."""
_HEAT, _TRUTH = (214, 39, 40), (31, 119, 180)


@dataclass(frozen=True, kw_only=True)
class PieceScore:
    """Of a piece that was not trained on.

    Attributes:
        name: of the piece.
        num_patches: by the rule of PatchCamelyon.
        patch_auc: of them; NaN if all are of one class.
        square_auc: of the squares of its heat map.
        tumor_share: of these squares.
    """

    name: str
    num_patches: int
    patch_auc: float
    square_auc: float
    tumor_share: float


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Over everything that was predicted.

    Attributes:
        patch_auc: of the patches of all pieces that are scored; each is scored by the network that has not seen it.
        square_auc: likewise of the squares of heat maps.
        froc: share of lesions found by false positives a slide; empty if no slide has lesions.
        froc_of_intensity: the same of the darkest or lightest tenth of the squares.
        num_squares: that the networks saw.
        seconds: that all heat maps took.
        baselines: AUC of the same patches, and of squares of the same heat maps, by what has learned nothing.
        unlearned: why the networks have no score; "" where they have.
        data: the name of the data set, where the networks were trained on another; else "".
    """

    patch_auc: float
    square_auc: float
    froc: Mapping[float, float]
    num_squares: int
    seconds: float
    froc_of_intensity: Mapping[float, float] = field(default_factory=dict)
    baselines: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    unlearned: str = ""
    data: str = ""

    @property
    def froc_score(self) -> float:
        """The mean of `froc`, NaN if it is empty."""
        return _mean(self.froc)


@dataclass(frozen=True, kw_only=True)
class SlidePicture:
    """A slide that is shown: (3, y, x) and, of the same size, the probability and the truth if it is known."""

    title: str
    pixels: Pixels
    probability: npt.NDArray[np.float32]
    truth: Mask | None


def slides_document(
    scores: Sequence[PieceScore],
    figures: Figures,
    drawn: Sequence[SlidePicture],
    events: Sequence[Mapping[str, Any]],
    *,
    settings: Mapping[str, str],
    notices: Sequence[str] = (),
) -> Document:
    """The page of a training and of the heat maps of its networks."""
    cards = [
        Card(name="Heat maps", value=duration_text(figures.seconds), note=count_text(figures.num_squares, "square"))
    ]
    is_scored = bool(scores) and not figures.unlearned
    if is_scored:
        notes = [
            "; ".join(f"{name} {number_text(aucs[kind], 3)}" for name, aucs in figures.baselines.items())
            for kind in (0, 1)
        ]
        cards.insert(0, Card(name="AUC of squares", value=number_text(figures.square_auc, 3), note=notes[1]))
        cards.insert(0, Card(name="AUC of patches", value=number_text(figures.patch_auc, 3), note=notes[0]))
    if figures.froc and not figures.unlearned:
        cards.append(
            Card(
                name="FROC",
                value=number_text(figures.froc_score),
                note="mean at 1/4 to 8 false positives a slide; "
                f"intensity alone {number_text(_mean(figures.froc_of_intensity))}",
            )
        )
    return Document(
        kind="pathology report",
        title="Tumor in slides of tissue",
        verdict=_verdict(scores, figures, len(drawn)),
        notices=notices,
        cards=cards,
        sections=[
            Section(title=BASELINES, blocks=_baseline_table(figures) if is_scored else [], key=BASELINES_KEY),
            Section(title="Slides", blocks=_pictures(drawn), key="slides"),
            Section(title="Lesions", blocks=_lesions(figures), key="lesions"),
            Section(title="Pieces", blocks=[_table(scores)] if scores else [], key="pieces"),
            Section(title="Training", blocks=training_blocks(events, settings), key="training", is_detail=True),
        ],
        values=plain_data(
            {
                UNLEARNED: figures.unlearned,
                "data": settings.get("data", ""),
                "patch_auc": figures.patch_auc if is_scored else math.nan,
                "square_auc": figures.square_auc if is_scored else math.nan,
                "froc": math.nan if figures.unlearned else figures.froc_score,
                "froc_of_intensity": _mean(figures.froc_of_intensity),
                "baselines": {
                    name: {"patch_auc": patches, "square_auc": squares}
                    for name, (patches, squares) in figures.baselines.items()
                },
                "num_squares": figures.num_squares,
                "seconds": figures.seconds,
                "pieces": {
                    score.name: {"patch_auc": score.patch_auc, "square_auc": score.square_auc} for score in scores
                },
            },
            where="the scores",
        ),
    )


def _verdict(scores: Sequence[PieceScore], figures: Figures, num_slides: int) -> str:
    of_data = f" of {figures.data}" if figures.data else ""
    if figures.unlearned:
        return unlearned_verdict(figures.unlearned)
    if not scores:
        return f"Predicted {count_text(num_slides, 'slide')}{of_data}, without annotations to compare with."
    baselines = " and ".join(
        f"{number_text(patches, 3)} by the {name}" for name, (patches, _) in figures.baselines.items() if name != CHANCE
    )
    verdict = (
        f"On {count_text(len(scores), 'unseen piece')}{of_data}, tumor is separated from other tissue with an AUC of "
        f"{number_text(figures.patch_auc, 3)} for patches and {number_text(figures.square_auc, 3)} for squares of the "
        "heat maps."
    )
    if not baselines:
        return verdict
    best = max((patches for patches, _ in figures.baselines.values() if not math.isnan(patches)), default=math.nan)
    worth = "" if not figures.patch_auc <= best else " So the training has gained nothing over them."
    return f"{verdict} The same patches are separated with {baselines}, without any training.{worth}"


def _baseline_table(figures: Figures) -> list[Any]:
    """The networks next to what has learned nothing."""
    rows = [
        (name, *(number_text(auc, 3) for auc in aucs))
        for name, aucs in {
            "trained": (figures.patch_auc, figures.square_auc), **figures.baselines
        }.items()
    ]  # fmt: skip
    heads = ("By", "AUC of patches", "AUC of squares")
    hint = (
        "AUC of squares without training is of at most 1,000 squares of each piece. Mean intensity is taken as it "
        "separates better, darker or lighter; for lesions, the tenth of the squares at that end is listed."
    )
    table = Table(caption=BASELINES, heads=heads, rows=rows, hides_caption=True)
    return [table, Text(text=hint, is_hint=True)]


def _table(scores: Sequence[PieceScore]) -> Table:
    rows = [
        (
            score.name, str(score.num_patches), number_text(score.patch_auc, 3), number_text(score.square_auc, 3),
            f"{100 * score.tumor_share:.0f} %",
        )
        for score in sorted(scores, key=lambda score: (math.isnan(score.square_auc), score.square_auc))
    ]  # fmt: skip
    heads = ("Piece", "Patches", "AUC of patches", "AUC of squares", "Squares that are tumor")
    return Table(caption="Pieces that were not trained on, worst first", heads=heads, rows=rows)


def _mean(froc: Mapping[float, float]) -> float:
    return sum(froc.values()) / len(froc) if froc else math.nan


def _lesions(figures: Figures) -> list[Any]:
    if not figures.froc:
        return []
    heads = ("False positives a slide", *(f"{rate:g}" for rate in figures.froc), "mean")
    found = {"Lesions found": figures.froc, "By intensity alone": figures.froc_of_intensity}
    rows = [
        (name, *(number_text(share) for share in shares.values()), number_text(_mean(shares)))
        for name, shares in found.items()
        if shares
    ]
    return [Table(caption="Lesions found, by the rules of CAMELYON16", heads=heads, rows=rows)]


def _pictures(drawn: Sequence[SlidePicture]) -> list[Any]:
    if not drawn:
        return []
    films = []
    # The page offers the layers of the first one.
    for slide in sorted(drawn[:MOST_DRAWN], key=lambda slide: slide.truth is None):
        layers = {"prediction": png_data_uri(_layer(np.nan_to_num(slide.probability), _HEAT))}
        if slide.truth is not None:
            layers["truth"] = png_data_uri(_layer(slide.truth.astype(np.float32), _TRUTH))
        height, width = slide.pixels.shape[1:]
        picture = png_data_uri(np.ascontiguousarray(slide.pixels.transpose(1, 2, 0)))
        films.append(
            (slide.title, [SliceFilm(plane="slide", count=1, ratio=width / height, image=picture, layers=layers)])
        )
    legend = [LegendEntry(name="predicted tumor", color=f"rgb{_HEAT}")]
    if any(slide.truth is not None for slide in drawn):
        legend.append(LegendEntry(name="annotated tumor", color=f"rgb{_TRUTH}"))
    return [Slices(figures=films, legend=legend, difference_legend=())]


def _layer(share: npt.NDArray[np.float32], color: tuple[int, int, int]) -> Pixels:
    """(y, x, 4): a color as opaque as the share is high."""
    layer = np.empty((*share.shape, 4), np.uint8)
    layer[..., :3] = color
    layer[..., 3] = np.rint(255.0 * np.clip(share, 0.0, 1.0))
    return layer
