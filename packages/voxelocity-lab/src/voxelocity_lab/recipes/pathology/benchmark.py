"""MONAI's way with slides next to ours: reading patches, augmenting them, training to an AUC, and a whole slide.

MONAI reads each patch by `PatchWSIDataset` and changes it by the transforms of its pathology example, and Voxelocity
makes the same changes; torchvision's ColorJitter is stood in for by the calls of Pillow that it makes itself. Whole
slides are predicted by the same weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from voxelocity.core.learning import UNLEARNED
from voxelocity.data.augment import AugmentConfig
from voxelocity.data.feed import OrderedPrefetch
from voxelocity.step import RunningAverage, autocast
from voxelocity_lab.bench.comparison import BenchSide, Comparison, compare
from voxelocity_lab.recipes.call import Call
from voxelocity_lab.recipes.pages import write_benchmark
from voxelocity_lab.recipes.pathology.baselines import ratings_of, squares_of
from voxelocity_lab.recipes.pathology.dataset import OpenPieces, Piece, find_pieces
from voxelocity_lab.recipes.pathology.heatmap import HeatMap, predict_slide
from voxelocity_lab.recipes.pathology.model import PatchNet, TrainedPatches, change_heat, find_models, load_patches
from voxelocity_lab.recipes.pathology.patches import PatchBatches
from voxelocity_lab.recipes.pathology.score import patch_scores, roc_auc, scores_at, square_scores
from voxelocity_lab.recipes.pathology.settings import SQUARE, PathologyConfig
from voxelocity_lab.recipes.pathology.slides import Blocks, Box
from voxelocity_lab.recipes.pathology.tissue import Tissue
from voxelocity_observe.core.clock import Stopwatch
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.host import cpu_budget
from voxelocity_observe.core.quantities import count_text

# A tenth of a short training; blocks of slides are read once, in the first of them.
_NUM_BATCHES = 128
_ROUNDS = 3
# Of trainings: what features made by hand reach. On the pieces of these folds, which are held out, networks level off
# at 0.95, so that a target there is reached by chance (docs/log).
_TARGET_AUC, _HELD_FOLDS = 0.9, (0, 1, 2)
_LIMIT_S, _CHECK_S = 60.0, 2.0
# Of MONAI's slides: the side, and the package that reads them.
_READERS = {"MONAI": "openslide", "MONAI, cuCIM": "cucim"}
# The changes of MONAI's example, with its strengths; `_monai_transform` has them too.
_COLOR = {"stain": 0.0, "stain_shift": 0.0, "brightness": 0.25, "contrast": 0.75, "saturation": 0.25, "hue": 0.04}
_EXAMPLE = AugmentConfig.only(
    flip_probability=(0.0, 0.5, 0.5), quarter_turn_probability=(0.5, 0.0, 0.0), affine_probability=0.5,
    rotation_share=0.0, scale_share=1.0, scale_range=(0.9, 1.1),
    effects=[{"factory": "voxelocity.data.augment.color:ColorAndStain", "settings": _COLOR, "probability": 1.0}],
)  # fmt: skip


def benchmark(call: Call) -> None:
    """Measures all four with the first model in `call.out`; writes `bench_pathology.json` and its page there."""
    trained = change_heat(call, load_patches(find_models(call.out)[0]))
    pieces = [piece for piece in find_pieces(call.data) if piece.annotation is not None]
    if not pieces or any(piece.slide.suffix.lower() not in {".tif", ".tiff", ".svs"} for piece in pieces):
        raise InputError(
            f"pathology: MONAI reads only slides, and {call.data} holds photographs or nothing annotated; compare on "
            "slides (.tiff, .svs) with annotations"
        )
    if len({piece.fold in _HELD_FOLDS for piece in pieces}) < 2:
        folds = ", ".join(map(str, sorted({piece.fold for piece in pieces})))
        raise InputError(
            f"pathology: trainings are compared on the folds 0, 1 and 2 and train on the others, and {call.data} has "
            f"annotated pieces of fold {folds} alone; give slides.csv a column fold with some of both"
        )
    opened = OpenPieces(pieces)
    aucs: dict[str, float] = {}
    measured = (
        *_patches(opened, trained.config, call.seed),
        _training(pieces, trained.config, call),
        _whole(opened, trained, call, aucs),
    )
    settings = {"batch_size": trained.config.fit.batch_size, "num_batches": _NUM_BATCHES, "target_auc": _TARGET_AUC}
    details: dict[str, Any] = {UNLEARNED: trained.unlearned}
    if not trained.unlearned:
        details["square_auc"] = aucs
    write_benchmark(call, "pathology", measured, settings, details)


def _patches(opened: OpenPieces, config: PathologyConfig, seed: int) -> Sequence[Comparison]:
    def ours(changes: bool, num_threads: int) -> Callable[[], float]:
        chosen = config.model_copy(update={"augment": _EXAMPLE if changes else AugmentConfig(enabled=False)})

        def once() -> float:
            batches = PatchBatches(opened, Blocks(config.cache_bytes), chosen, seed=seed)
            with OrderedPrefetch(batches, stop=_NUM_BATCHES, num_threads=num_threads, num_ahead=4) as made:
                return _rate(made, config.fit.batch_size)

        return once

    def theirs(changes: bool, num_workers: int, reader: str) -> Callable[[], float]:
        return lambda: _rate(
            _monai_batches(opened, config, seed, changes, num_workers, reader=reader), config.fit.batch_size
        )

    found = []
    for title, changes in (("Patches read", False), ("Patches read and augmented", True)):
        sides = [
            BenchSide(
                name=f"Voxelocity, {threads} threads" if threads > 1 else "Voxelocity, one thread",
                once=ours(changes, threads),
            )
            for threads in sorted({1, cpu_budget()}, reverse=True)
        ]
        for (monai, reader), workers in itertools.product(_READERS.items(), sorted({0, cpu_budget()})):
            name = f"{monai}, {workers} workers" if workers else f"{monai}, no workers"
            sides.append(_reading_side(name, reader, theirs(changes, workers, reader)))
        found.append(compare(title, "patches/s", sides, repeats=_ROUNDS))
    return found


def _reading_side(name: str, reader: str, once: Callable[[], float]) -> BenchSide:
    if find_spec(reader) is None:
        return BenchSide(name=name, once=None, note=f"{reader} is not installed")
    return BenchSide(name=name, once=once)


def _training(pieces: Sequence[Piece], config: PathologyConfig, call: Call) -> Comparison:
    """The same network and optimizer on batches of both, until they separate patches of the held-out pieces."""
    held = OpenPieces([piece for piece in pieces if piece.fold in _HELD_FOLDS])
    opened = OpenPieces([piece for piece in pieces if piece.fold not in _HELD_FOLDS])

    def ours(augment: AugmentConfig) -> Callable[[], float]:
        chosen, seeds = config.model_copy(update={"augment": augment}), itertools.count(call.seed)

        def once() -> float:
            seed = next(seeds)
            batches = PatchBatches(opened, Blocks(config.cache_bytes), chosen, seed=seed)
            with OrderedPrefetch(batches, num_threads=1, num_ahead=4) as made:
                pairs = ((batch.image, batch.label) for batch in made)
                return _seconds_to_auc(pairs, held, config, call.device, seed=seed, num_makers=1)

        return once

    def theirs(num_workers: int) -> Callable[[], float]:
        seeds = itertools.count(call.seed)

        def once() -> float:
            seed = next(seeds)
            batches = _monai_batches(opened, config, seed, True, num_workers, num_batches=2000)
            pairs = (((batch["image"].as_tensor() + 1.0) / 2.0, batch["label"].float()) for batch in batches)
            return _seconds_to_auc(pairs, held, config, call.device, seed=seed, num_makers=num_workers)

        return once

    sides = [
        BenchSide(name="Voxelocity", once=ours(_EXAMPLE), note="the augmentation of MONAI's example"),
        BenchSide(name="Voxelocity, recipe", once=ours(config.augment), note="with rotations and changes of stain"),
        *(
            BenchSide(
                name=f"MONAI, {count_text(workers, 'worker')}", once=theirs(workers), note="one label for each patch"
            )
            for workers in sorted({1, cpu_budget()})
        ),
    ]
    note = (
        f"Seconds until the AUC of held-out patches is {_TARGET_AUC}, at most {_LIMIT_S:.0f}; checks do not count. "
        "Each round has another seed."
    )
    return compare("Training", "s", sides, repeats=_ROUNDS, warmup=0, note=note)


def _seconds_to_auc(
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    held: OpenPieces,
    config: PathologyConfig,
    device: torch.device,
    *,
    seed: int,
    num_makers: int,
) -> float:
    """Images (b, 3, y, x) from 0 to 1, with labels of all squares or of the one in the middle.

    The running average of the weights is judged, as in the recipe: between two steps, the AUC of the weights themselves
    changes by up to 0.2. The step leaves a core to each thread or process that makes batches.
    """
    torch.manual_seed(seed)
    before, num_threads = torch.get_num_threads(), max(1, cpu_budget() - num_makers)
    network = PatchNet(config.network.width).to(device)
    given = config.fit.optimizer
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=given.learning_rate, weight_decay=given.weight_decay, fused=True
    )
    average = RunningAverage(network, given.average_decay)
    judged = average.network.eval()
    assert isinstance(judged, PatchNet)
    blocks, spent_s, watch = Blocks(config.cache_bytes), 0.0, Stopwatch()
    for image, label in batches:
        image, label = image.to(device), label.to(device)
        torch.set_num_threads(num_threads)
        with autocast(config.precision, device):
            logits = (network(image) if label.ndim == 3 else network.patches(image)).float()
        torch.nn.functional.binary_cross_entropy_with_logits(logits, label).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        average.update(network)
        if watch.elapsed_s < _CHECK_S:
            continue
        spent_s += watch.elapsed_s
        torch.set_num_threads(before)
        found = [
            patch_scores(
                [judged], held.slide(piece), annotation, config, box=held.box(piece), device=device, blocks=blocks
            )
            for piece in held.pieces
            if (annotation := held.annotation(piece)) is not None
        ]
        scores, is_tumor = (np.concatenate(part) for part in zip(*found, strict=True))
        if spent_s >= _LIMIT_S or roc_auc(scores, is_tumor) >= _TARGET_AUC:
            break
        watch = Stopwatch()
    torch.set_num_threads(before)
    return spent_s


def _rate(batches: Any, batch_size: int) -> float:
    """Patches a second, from the request of the first batch to the end of the last."""
    watch = Stopwatch()
    num = sum(1 for _ in batches)
    return num * batch_size / watch.elapsed_s


def _monai_batches(
    opened: OpenPieces, config: PathologyConfig, seed: int, changes: bool, num_workers: int,
    num_batches: int = _NUM_BATCHES, reader: str = "openslide",
) -> Any:  # fmt: skip
    # The same places as ours.
    batches = PatchBatches(opened, Blocks(0), config, seed=seed)
    items = []
    for number in range(num_batches):
        draws, boxes, is_tumor = batches.draw(number)
        for draw, box, tumor in zip(draws, boxes, is_tumor, strict=True):
            corner = [max(box.y, 0), max(box.x, 0)]
            items.append({"image": str(opened.pieces[draw.case].slide), "location": corner, "label": int(tumor)})
    size, level = config.fit.batch_size, config.patch.level
    return _monai_loader(
        items, config, changes=changes, level=level, reader=reader, batch_size=size, num_workers=num_workers
    )


def _monai_loader(
    items: Sequence[Any], config: PathologyConfig, *, changes: bool, level: int = 0, reader: str = "openslide",
    **options: Any,
) -> Iterable[Any]:  # fmt: skip
    from monai.data import DataLoader, PatchWSIDataset

    data = PatchWSIDataset(
        items, patch_size=(config.patch.side,) * 2, patch_level=level, reader=reader, center_location=False,
        include_label="label" in items[0], transform=_monai_transform(changes),
    )  # fmt: skip
    batches: Iterable[Any] = DataLoader(data, **options)
    return batches


def _monai_transform(changes: bool) -> Any:
    """As in MONAI's `camelyon_train_evaluate_numpy_pipeline.py`."""
    from monai.transforms import (
        CastToTyped,
        Compose,
        Lambdad,
        RandFlipd,
        RandRotate90d,
        RandZoomd,
        ScaleIntensityRanged,
    )

    scaled = ScaleIntensityRanged("image", a_min=0.0, a_max=255.0, b_min=-1.0, b_max=1.0)
    if not changes:
        return Compose([CastToTyped("image", dtype=np.float32), scaled])
    return Compose(
        [
            Lambdad("image", _jitter_color),
            RandFlipd("image", prob=0.5),
            RandRotate90d("image", prob=0.5, max_k=3, spatial_axes=(-2, -1)),
            CastToTyped("image", dtype=np.float32),
            RandZoomd("image", prob=0.5, min_zoom=0.9, max_zoom=1.1),
            scaled,
        ]
    )


def _jitter_color(image: Any) -> Any:
    """What torchvision's ColorJitter does to a picture, with the example's strengths."""
    from PIL import Image, ImageEnhance

    picture = Image.fromarray(np.ascontiguousarray(np.moveaxis(np.asarray(image).astype(np.uint8), 0, -1)))
    rng = np.random.default_rng()
    kinds = ((ImageEnhance.Brightness, 0.25), (ImageEnhance.Contrast, 0.75), (ImageEnhance.Color, 0.25))
    for number in rng.permutation(4):
        if number < 3:
            kind, most = kinds[number]
            picture = kind(picture).enhance(1.0 + most * rng.uniform(-1.0, 1.0))
            continue
        hue, saturation, value = picture.convert("HSV").split()
        turned = (np.asarray(hue, np.int16) + round(255 * 0.04 * rng.uniform(-1.0, 1.0))) % 256
        picture = Image.merge("HSV", (Image.fromarray(turned.astype(np.uint8)), saturation, value)).convert("RGB")
    return np.moveaxis(np.asarray(picture), -1, 0)


def _whole(opened: OpenPieces, trained: TrainedPatches, call: Call, aucs: dict[str, float]) -> Comparison:
    piece = opened.pieces[0]
    slide, annotation = opened.slide(piece), opened.annotation(piece)
    whole = opened.box(Piece(name="", slide=piece.slide, annotation=None, box=None, fold=0))
    network, config = trained.network.to(call.device), trained.config
    ratings = ratings_of(trained, call.device)
    assert annotation is not None, "pieces without were left out"

    def ours(is_dense: bool) -> Callable[[], float]:
        heat_config = config.heat.model_copy(update={"is_dense": is_dense, "turns": 1})
        chosen = config.model_copy(update={"heat": heat_config})

        def once() -> float:
            watch = Stopwatch()
            heat = predict_slide([network], slide, chosen, box=whole, device=call.device, num_threads=cpu_budget())
            seconds = watch.elapsed_s
            aucs["dense" if is_dense else "by patches"] = roc_auc(*square_scores(heat, annotation))
            if not aucs.keys() >= ratings.keys():
                boxes, is_tumor = squares_of(heat, annotation, chosen)
                where: dict[str, Any] = {"device": call.device, "blocks": Blocks(config.cache_bytes)}
                for name, rating in ratings.items():
                    aucs[name] = roc_auc(scores_at(boxes, rating, slide, chosen, **where), is_tumor)
            return seconds

        return once

    def theirs(name: str) -> Callable[[], float]:
        def once() -> float:
            watch = Stopwatch()
            probability = _monai_heat(opened, piece, network, config, call, _READERS[name])
            seconds = watch.elapsed_s
            heat = predict_slide([network], slide, config, box=whole, device=call.device, num_threads=cpu_budget())
            aucs[name] = roc_auc(*square_scores(_like(heat, probability), annotation))
            return seconds

        return once

    sides = [
        BenchSide(name="Voxelocity, by patches", once=ours(False)),
        BenchSide(name="Voxelocity, dense", once=ours(True)),
        *(_reading_side(name, reader, theirs(name)) for name, reader in _READERS.items()),
    ]
    return compare("A whole slide", "s", sides, repeats=_ROUNDS, warmup=0)


def _like(heat: HeatMap, probability: Any) -> HeatMap:
    return replace(heat, probability=np.where(np.isfinite(heat.probability), probability, np.nan))


def _monai_heat(
    opened: OpenPieces, piece: Piece, network: PatchNet, config: PathologyConfig, call: Call, reader: str
) -> Any:
    """Every square where there is tissue, each read as a patch of its own, in the number format of our side."""
    slide = opened.slide(piece)
    tissue = Tissue(slide, config.tissue)
    height, width = (side // SQUARE for side in slide.shapes[0])
    margin = (config.patch.side - SQUARE) // 2
    squares = [
        (row, column)
        for row, column in itertools.product(range(height), range(width))
        if tissue.has(Box(y=row * SQUARE, x=column * SQUARE, height=SQUARE, width=SQUARE))
    ]
    items = [
        {"image": str(piece.slide), "location": [row * SQUARE - margin, column * SQUARE - margin]}
        for row, column in squares
    ]
    options = {"batch_size": config.heat.batch_size, "num_workers": cpu_budget()}
    with torch.inference_mode(), autocast(config.precision, call.device):
        # The network takes intensities from 0 to 1.
        logits = [
            network.patches((batch["image"].as_tensor().to(call.device) + 1.0) / 2.0)
            for batch in _monai_loader(items, config, changes=False, reader=reader, **options)
        ]
    found = np.full((height, width), np.nan, np.float32)
    found[tuple(np.transpose(squares))] = torch.cat(logits).float().sigmoid().cpu().numpy()
    return found
