"""What `voxelocity recipe pathology` does: train, predict whole slides, and compare with the standard approach."""

from __future__ import annotations

import csv
import io
import math
import os
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from voxelocity.infer import SPEC_NAME
from voxelocity.training.run_folder import RunFolder
from voxelocity_lab.recipes.call import Call
from voxelocity_lab.recipes.pages import number_text, write_report
from voxelocity_lab.recipes.pathology.annotations import Mask
from voxelocity_lab.recipes.pathology.baselines import find_spots
from voxelocity_lab.recipes.pathology.dataset import OpenPieces, Piece, check_annotated, find_pieces, identify
from voxelocity_lab.recipes.pathology.froc import Detection, SlideHits, froc, lesions_of, match
from voxelocity_lab.recipes.pathology.heatmap import merged, write_heat
from voxelocity_lab.recipes.pathology.judging import Judged, Maps, judge_pieces, resolution_notices
from voxelocity_lab.recipes.pathology.model import TrainedPatches, change_heat, find_models, load_patches
from voxelocity_lab.recipes.pathology.page import MOST_DRAWN, Figures, PieceScore, SlidePicture, slides_document
from voxelocity_lab.recipes.pathology.picture import picture_of
from voxelocity_lab.recipes.pathology.settings import SQUARE, PathologyConfig, settings
from voxelocity_lab.recipes.pathology.slides import Box
from voxelocity_lab.recipes.pathology.train import train_fold
from voxelocity_lab.recipes.results import find_training_data, is_same, name_of, open_results
from voxelocity_observe.core.clock import Stopwatch
from voxelocity_observe.core.errors import ConfigError, InputError
from voxelocity_observe.core.events import events_path, read_events
from voxelocity_observe.core.plain import table_cell
from voxelocity_observe.core.quantities import count_text
from voxelocity_observe.core.whole_file import put_in_place

_HEAT = "heat"
# Where lesions are found in annotations: as fine as squares of a heat map.
_TRUTH_DOWNSAMPLE = 32.0


def train(call: Call) -> None:
    """Trains one network for each fold that is held out, each in a folder of its own below `call.out`."""
    watch = Stopwatch()
    pieces = find_pieces(call.data)
    check_annotated(call.data, pieces)
    known = sorted({piece.fold for piece in pieces if piece.annotation is not None})
    first = settings(call)
    folds: Sequence[int | None] = known if first.folds == "all" else [int(fold) for fold in first.folds] or [None]
    if unknown := [fold for fold in folds if fold is not None and fold not in known]:
        raise ConfigError(
            f"pathology: folds names fold {unknown[0]}, which no annotated piece of {call.data} has; it has "
            f"{', '.join(map(str, known))}"
        )
    _check_folder(call.out)
    # The time is shared out evenly.
    config = first.model_copy(
        update={"fit": first.fit.model_copy(update={"time_budget_s": first.fit.time_budget_s / len(folds)})}
    )
    for number, fold in enumerate(folds):
        out = call.out / _name(fold)
        if call.resume and (out / SPEC_NAME).exists():
            call.console.print(f"{out.name} is finished", highlight=False)
            continue
        call.console.rule(f"{out.name}, {number + 1} of {len(folds)}")
        train_fold(call, out, pieces, config, fold, spent_s=call.spent_s + watch.elapsed_s if number == 0 else 0.0)


def _check_folder(out: Path) -> None:
    """Refuses a folder with a run of another recipe, or with other files.

    Raises:
        InputError: it is one, or cannot be written.
    """
    folder = RunFolder(out)
    if folder.holds_run:
        raise ConfigError(f"pathology: {out} holds the run of another recipe; choose another folder with -o")
    if not any(out.glob(f"{_name(None)}/")) and not any(out.glob("fold_*/")):
        folder.check()
    folder.open()


def _name(fold: int | None) -> str:
    return "all_folds" if fold is None else f"fold_{fold}"


def predict(call: Call) -> None:
    """Predicts heat maps of the slides of `call.data` with the networks in `call.out`.

    What is annotated is predicted by the networks that have not seen it, and scored; what is not, by all of them.
    Writes `heat/SLIDE.tiff`, `lesions.csv`, `scores.json` and `report.html`.
    """
    watch = Stopwatch()
    folders = find_models(call.out)
    models = [change_heat(call, load_patches(folder)) for folder in folders]
    config = models[0].config
    for model in models:
        model.network.to(call.device)
    pieces = find_pieces(call.data)
    unseen, notices = _unseen(models, pieces)
    able = {piece.name: _unseen_by(models, piece, unseen) for piece in pieces}
    chosen = [piece for piece in pieces if able[piece.name]]
    if not chosen:
        raise InputError(
            f"pathology: all pieces of {call.data} were trained on, or are of slides or patients that were, so none "
            "can be predicted and scored; name other slides, or train with a fold held out"
        )
    if left := len(pieces) - len(chosen):
        network = "The network" if len(models) == 1 else "Every network"
        notices.append(
            f"{network} was trained on {left} of the {len(pieces)} pieces, or on others of their slides or "
            "patients; they are not scored."
        )
    opened = OpenPieces(chosen)
    notices += resolution_notices(models, opened)
    origin = find_training_data(folders[0])
    call, is_own = open_results(call, origin), is_same(call.data, origin)
    judged = judge_pieces(call, opened, {piece.name: able[piece.name] for piece in chosen})
    found, by_intensity, drawn = _write(call, config, opened, judged)
    figures = Figures(
        aucs=judged.aucs,
        gains=judged.gains,
        units=judged.units,
        froc=froc(found),
        froc_of_intensity=froc(by_intensity),
        num_slides=len(judged.maps),
        num_squares=sum(heat.num_seen for parts in judged.maps.values() for _, heat in parts),
        seconds=watch.elapsed_s,
        unlearned="; ".join(f"{_name(model.fold)}: {model.unlearned}" for model in models if model.unlearned),
        data="" if is_own else name_of(call.data),
    )
    document = slides_document(
        judged.scores, figures, drawn, read_events(events_path(folders[0])),
        settings=_in_words(call, config, models), notices=[*notices, *judged.notices],
    )  # fmt: skip
    write_report(call, document, call.out / _HEAT)


def _unseen(models: Sequence[TrainedPatches], pieces: Sequence[Piece]) -> tuple[set[tuple[int | None, str]], list[str]]:
    """Folds of networks with the names of annotated pieces that they have not seen, and what to know about that.

    What a network has seen is kept with it; folds of today's table may be others.
    """
    parts = identify([piece for piece in pieces if piece.annotation is not None])
    unseen: set[tuple[int | None, str]] = set()
    near: set[str] = set()
    is_known = False
    for model in models:
        knows = model.division.knows(parts.values())
        is_known |= knows
        for name, part in parts.items():
            if not model.division.has(part, by_patient=knows):
                unseen.add((model.fold, name))
                if model.division.is_near(part, by_patient=knows):
                    near.add(name)
    notices = []
    if near:
        notices.append(
            f"{count_text(len(near), 'piece')} of {len(parts)} were held out, but other pieces of their slides or "
            "patients were trained on, so scores are higher than on new slides."
        )
    if parts and not is_known:
        names = {part.name for model in models for part in model.division.trained} & parts.keys()
        same = f", although {count_text(len(names), 'name')} are the same" if names else ""
        notices.append(f"By content, none of these slides was used to train the networks{same}.")
    return unseen, notices


def _unseen_by(
    models: Sequence[TrainedPatches], piece: Piece, unseen: Collection[tuple[int | None, str]] = ()
) -> list[TrainedPatches]:
    """The networks that may predict a piece: those known not to have seen it, or all if there is nothing to score."""
    return [model for model in models if piece.annotation is None or (model.fold, piece.name) in unseen]


def _write(
    call: Call, config: PathologyConfig, opened: OpenPieces, judged: Judged
) -> tuple[list[SlideHits], list[SlideHits], list[SlidePicture]]:
    """Writes a heat map a slide, and all lesions; returns what was found in annotated ones, also by intensity alone,
    and pictures of the worst slides.
    """
    (call.out / _HEAT).mkdir(exist_ok=True)
    found: list[SlideHits] = []
    by_intensity: list[SlideHits] = []
    listed: list[tuple[str, Detection]] = []
    shown = _worst(judged.maps, judged.scores)
    drawn: dict[Path, SlidePicture] = {}
    stems = Counter(path.stem for path in judged.maps)
    for path, parts in judged.maps.items():
        slide = opened.slide(parts[0][0])
        heat = merged([part for _, part in parts], slide)
        # Slides of one name lie in different folders, or have different endings.
        name = path.name if stems[path.stem] == 1 else os.path.relpath(path, call.data)
        file = path.stem if name == path.name else name.replace(os.sep, "_")
        write_heat(heat, slide, call.out / _HEAT / f"{file}.tiff")
        width = slide.micrometers
        apart_pixels = config.heat.lesion_micrometers / width if width else 0.0
        detections = heat.lesions(least_probability=config.heat.least_probability, apart_pixels=apart_pixels)
        listed += [(name, detection) for detection in detections]
        truth = _truth(opened, [piece for piece, _ in parts])
        if truth is not None and width:
            lesions = lesions_of(truth, downsample=_TRUTH_DOWNSAMPLE, micrometers=width)
            found.append(match(detections, lesions))
            trivial = find_spots(heat, slide, config, apart_pixels=apart_pixels, is_darker=judged.is_darker)
            by_intensity.append(match(trivial, lesions))
        if path in shown:
            auc = "" if math.isnan(shown[path]) else f", AUC of squares {number_text(shown[path], 3)}"
            drawn[path] = picture_of(f"{name}{auc}", slide, heat, opened.annotation(parts[0][0]))
    put_in_place(call.out / "lesions.csv", _csv(listed))
    return found, by_intensity, [drawn[path] for path in shown]


def _worst(maps: Maps, scores: Sequence[PieceScore]) -> dict[Path, float]:
    """The slides to picture, worst first, with the least AUC of their pieces; NaN, and last, where there is none."""
    known = {score.name: score.square_auc for score in scores if not math.isnan(score.square_auc)}
    least = {path: min((known.get(piece.name, math.inf) for piece, _ in parts)) for path, parts in maps.items()}
    order = sorted(least, key=lambda path: least[path])[:MOST_DRAWN]
    return {path: least[path] if math.isfinite(least[path]) else math.nan for path in order}


def _truth(opened: OpenPieces, pieces: Sequence[Piece]) -> Mask | None:
    """The tumor of a slide within some of its pieces; None where that is not known of one of them."""
    height, width = (max(1, int(side / _TRUTH_DOWNSAMPLE)) for side in opened.slide(pieces[0]).shapes[0])
    truth = np.zeros((height, width), bool)
    for piece in pieces:
        annotation, box = opened.annotation(piece), opened.box(piece)
        if annotation is None:
            return None
        y, x, rows, columns = (int(n / _TRUTH_DOWNSAMPLE) for n in (box.y, box.x, box.height, box.width))
        low = Box(y=y, x=x, height=rows, width=columns).clip(height, width)
        truth[low.slices] |= annotation.mask(low, _TRUTH_DOWNSAMPLE)
    return truth


def _csv(listed: Sequence[tuple[str, Detection]]) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(["slide", "probability", "x", "y"])
    rows.writerows([table_cell(name), f"{probability:.4f}", round(x), round(y)] for name, (probability, x, y) in listed)
    return text.getvalue().encode()


def _in_words(call: Call, config: PathologyConfig, models: Sequence[TrainedPatches]) -> dict[str, str]:
    patch = config.patch
    num_weights = sum(parameter.numel() for parameter in models[0].network.parameters())
    return {
        "data": str(call.data),
        "network": f"ResNet-18, {num_weights / 1e6:.1f} million weights",
        "trained": ", ".join(_name(model.fold) for model in models),
        "patches": f"{patch.side} x {patch.side} pixels of level {patch.level}, tumor by the central {SQUARE}",
        "heat map": "dense" if config.heat.is_dense else "one patch a square",
    }


def benchmark(call: Call) -> None:
    """Compares reading, augmenting, training and predicting with MONAI's pipeline, by the models in `call.out`."""
    from voxelocity_lab.recipes.pathology.benchmark import benchmark as compare

    compare(call)
