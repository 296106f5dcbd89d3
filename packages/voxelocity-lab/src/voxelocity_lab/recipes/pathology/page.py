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
from voxelocity_lab.recipes.pathology.resampling import Estimate, Kinds
from voxelocity_lab.recipes.pathology.slides import Pixels
from voxelocity_observe.core.plain import plain_data
from voxelocity_observe.core.quantities import count_text, duration_text
from voxelocity_observe.document.blocks import Card, Document, LegendEntry, Section, SliceFilm, Slices, Table, Text

MOST_DRAWN = 6
TRAINED = "trained"
"""The networks' name among those that rate patches."""
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
        aucs: of the patches of all pieces that are scored, and of the squares of heat maps: of the networks that have
            not seen them (`TRAINED`), and of what they must beat.
        gains: by how much those of the networks are higher.
        units: what was drawn again for the intervals, in words.
        froc: share of lesions found by false positives a slide; empty if no slide has lesions.
        froc_of_intensity: the same of the darkest or lightest tenth of the squares.
        num_slides: that were predicted.
        num_squares: that the networks saw.
        seconds: that all heat maps took.
        unlearned: why the networks have no score; "" where they have.
        data: the name of the data set, where the networks were trained on another; else "".
    """

    froc: Mapping[float, float]
    num_slides: int
    num_squares: int
    seconds: float
    aucs: Mapping[str, Kinds] = field(default_factory=dict)
    gains: Mapping[str, Kinds] = field(default_factory=dict)
    units: str = ""
    froc_of_intensity: Mapping[float, float] = field(default_factory=dict)
    unlearned: str = ""
    data: str = ""

    @property
    def trained(self) -> Kinds:
        """Of the networks; NaN where nothing is scored."""
        return self.aucs.get(TRAINED, (Estimate(value=math.nan),) * 2)

    @property
    def baselines(self) -> dict[str, Kinds]:
        """What the networks must beat."""
        return {name: kinds for name, kinds in self.aucs.items() if name != TRAINED}

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
    is_scored = bool(scores) and not figures.unlearned
    return Document(
        kind="pathology report",
        title="Tumor in slides of tissue",
        verdict=_verdict(scores, figures),
        notices=notices,
        cards=_cards(figures, is_scored),
        sections=[
            Section(title=BASELINES, blocks=_baseline_table(figures) if is_scored else [], key=BASELINES_KEY),
            Section(title="Slides", blocks=_pictures(drawn), key="slides"),
            Section(title="Lesions", blocks=_lesions(figures), key="lesions"),
            Section(title="Pieces", blocks=[_table(scores)] if scores else [], key="pieces"),
            Section(title="Training", blocks=training_blocks(events, settings), key="training", is_detail=True),
        ],
        values=plain_data(_values(scores, figures, settings, is_scored), where="the scores"),
    )


def _cards(figures: Figures, is_scored: bool) -> list[Card]:
    cards = []
    if is_scored:
        for title, number in (("AUC of patches", 0), ("AUC of squares", 1)):
            others = "; ".join(
                f"{name} {number_text(kinds[number].value, 3)}" for name, kinds in figures.baselines.items()
            )
            found = figures.trained[number]
            interval = "" if math.isnan(found.low) else f"95 % interval {found.low:.3f} to {found.high:.3f}; "
            cards.append(Card(name=title, value=number_text(found.value, 3), note=interval + others))
    squares = count_text(figures.num_squares, "square")
    cards.append(Card(name="Heat maps", value=duration_text(figures.seconds), note=squares))
    if figures.froc and not figures.unlearned:
        cards.append(
            Card(
                name="FROC",
                value=number_text(figures.froc_score),
                note="mean at 1/4 to 8 false positives a slide; "
                f"intensity alone {number_text(_mean(figures.froc_of_intensity))}",
            )
        )
    return cards


def _values(
    scores: Sequence[PieceScore], figures: Figures, settings: Mapping[str, str], is_scored: bool
) -> dict[str, Any]:
    patches, squares = (found.value if is_scored else math.nan for found in figures.trained)
    return {
        UNLEARNED: figures.unlearned,
        "data": settings.get("data", ""),
        "patch_auc": patches,
        "square_auc": squares,
        "froc": math.nan if figures.unlearned else figures.froc_score,
        "froc_of_intensity": _mean(figures.froc_of_intensity),
        "baselines": {
            name: {"patch_auc": patches.value, "square_auc": squares.value}
            for name, (patches, squares) in figures.baselines.items()
        },
        "drawn_again": figures.units if is_scored else "",
        "intervals": _intervals(figures.aucs) if is_scored else {},
        "gains": _intervals(figures.gains) if is_scored else {},
        "num_squares": figures.num_squares,
        "seconds": figures.seconds,
        "pieces": {score.name: {"patch_auc": score.patch_auc, "square_auc": score.square_auc} for score in scores},
    }


def _intervals(found: Mapping[str, Kinds]) -> dict[str, dict[str, tuple[float, float]]]:
    return {
        name: {"patch_auc": (patches.low, patches.high), "square_auc": (squares.low, squares.high)}
        for name, (patches, squares) in found.items()
        if name != CHANCE
    }


def _verdict(scores: Sequence[PieceScore], figures: Figures) -> str:
    of_data = f" of {figures.data}" if figures.data else ""
    if figures.unlearned:
        return unlearned_verdict(figures.unlearned)
    if not scores:
        return f"Predicted {count_text(figures.num_slides, 'slide')}{of_data}, without annotations to compare with."
    patches, squares = figures.trained
    verdict = (
        f"On {count_text(len(scores), 'unseen piece')}{of_data}, tumor is separated from other tissue with an AUC of "
        f"{patches.text} for patches and {squares.text} for squares of the heat maps."
    )
    if not math.isnan(patches.low):
        verdict += f" In brackets: bootstrap 95 % intervals over the {figures.units}."
    known = {
        name: kinds[0].value
        for name, kinds in figures.baselines.items()
        if name != CHANCE and not math.isnan(kinds[0].value)
    }
    if not known:
        return verdict
    others = " and ".join(f"{number_text(auc, 3)} by the {name}" for name, auc in known.items())
    best = max(known, key=lambda name: known[name])
    gain = figures.gains[best][0]
    if not gain.value > 0.0 or patches.value <= 0.5:
        worth = " So the training is no better than they are."
    elif gain.low <= 0.0:
        worth = f" The gain over the {best} is within chance: {gain.text}."
    else:
        worth = f" The gain over the {best} is {gain.text}."
    return f"{verdict} Without a trained network, the same patches are separated with {others}.{worth}"


def _baseline_table(figures: Figures) -> list[Any]:
    """The networks next to what they must beat."""
    rows = [(name, *(kind.text for kind in kinds)) for name, kinds in figures.aucs.items()]
    heads = ("By", "AUC of patches", "AUC of squares")
    has_intervals = not math.isnan(figures.trained[0].low)
    hint = (
        "The AUC of squares without training uses at most 1,000 squares of each piece. Hand-made features are "
        "amounts of stain, intensity and texture, in a regression on the training pieces. Mean intensity counts "
        "darker or lighter, whichever separates better; for lesions, the tenth of the squares at that end is listed."
    )
    if has_intervals:
        hint = f"In brackets: bootstrap 95 % intervals over the {figures.units}, from 2,000 resamples. {hint}"
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
