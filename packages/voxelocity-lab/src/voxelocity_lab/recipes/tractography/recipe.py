"""What `voxelocity recipe tractography` does: train, predict, and compare with the plain way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from voxelocity_lab.recipes.call import Call
from voxelocity_lab.recipes.pages import write_report
from voxelocity_lab.recipes.results import find_training_data, open_results
from voxelocity_lab.recipes.tractography.baselines import baseline_streamlines
from voxelocity_lab.recipes.tractography.bundles import Bundles
from voxelocity_lab.recipes.tractography.generate import Generated, generate, wanted_counts
from voxelocity_lab.recipes.tractography.judge import Judgment, judge
from voxelocity_lab.recipes.tractography.page import GENERATED, NUM_DRAWN, REAL, Drawn, tract_document
from voxelocity_lab.recipes.tractography.settings import settings
from voxelocity_lab.recipes.tractography.train import (
    TrainedTracts,
    change_sampling,
    divide,
    load_tracts,
    train_tracts,
)
from voxelocity_lab.recipes.tractography.volume import find_image, find_mask, find_outside_mm, read_shadows
from voxelocity_observe.core.events import events_path, read_events
from voxelocity_observe.core.progress_bar import WorkProgress
from voxelocity_observe.core.quantities import count_text


def train(call: Call) -> None:
    """Trains on the streamlines of `call.data`; the model stays in `call.out`."""
    train_tracts(call, settings(call))


def predict(call: Call) -> None:
    """Makes streamlines with the model in `call.out`, and judges them by those of `call.data` that it has not seen.

    Writes `generated.trx` (or another format), `scores.json` and `report.html` there.
    """
    trained = change_sampling(call, load_tracts(call.out))
    config = trained.config
    training, real, notices = divide(trained, call.data)
    results = open_results(call, find_training_data(call.out))
    path = results.out / f"generated.{config.sample.format}"
    counts = wanted_counts(trained, np.bincount(real.bundle, minlength=len(trained.names)).tolist())
    with WorkProgress(call.console, "making streamlines") as progress:
        made = generate(
            trained, path, seed=call.seed, device=call.device, counts=counts, warn=notices.append, progress=progress
        )
    image = find_image(call.data, config.image)
    mask = find_mask(config.mask, image, real.streamlines)
    columns = {GENERATED: made.streamlines}
    columns |= baseline_streamlines(trained, made.bundle, training, seed=call.seed)
    with WorkProgress(call.console, "judging streamlines") as progress:
        judgments = {
            name: judge_all(trained.names, replace(made, streamlines=streamlines), training, real, mask, progress)
            for name, streamlines in columns.items()
        }
    held = judgments[GENERATED]
    drawn = sorted(held, key=lambda bundle: -held[bundle].num_real)[:NUM_DRAWN]
    lines = {
        column: {name: streamlines[made.bundle == trained.names.index(name)] for name in drawn}
        for column, streamlines in columns.items()
    }
    lines[REAL] = {name: real.of(trained.names.index(name)) for name in drawn}
    behind = {} if image is None else read_shadows(image, made.streamlines)
    document = tract_document(
        judgments,
        Drawn(columns=lines, behind=behind),
        read_events(events_path(call.out)),
        settings=_in_words(trained, call.data) | {"brain mask": "none" if mask is None else str(mask)},
        made=made,
        unlearned=trained.unlearned,
        notices=notices,
    )
    write_report(results, document, path)


def judge_all(
    names: Sequence[str],
    made: Generated,
    training: Bundles,
    real: Bundles,
    mask: Path | None,
    progress: WorkProgress | None = None,
) -> dict[str, Judgment]:
    """The bundles of which there are streamlines that the model has not seen."""
    outside_mm = None if mask is None else find_outside_mm(mask, made.streamlines)
    judgments = {}
    numbered = list(enumerate(names))
    for number, name in numbered if progress is None else progress.each(numbered, "judging bundle"):
        chosen, known = made.bundle == number, real.of(number)
        if len(known) and chosen.any():
            far = None if outside_mm is None else outside_mm[chosen]
            judgments[name] = judge(made.streamlines[chosen], known, training.of(number), outside_mm=far)
    return judgments


def _in_words(trained: TrainedTracts, data: Path) -> dict[str, str]:
    config = trained.config
    num_weights = sum(parameter.numel() for parameter in trained.network.parameters())
    steps = config.sample.num_steps
    return {
        "data": str(data),
        "trained on": f"{len(trained.division.trained):,} streamlines in {count_text(len(trained.names), 'bundle')}",
        "network": f"{num_weights / 1e6:.1f} million weights, {config.network.depth} blocks of {config.network.width}",
        "predicts": config.prediction,
        "sampled by": f"{config.sample.sampler}, {count_text(steps, 'step')}",
        "held out": f"{100 * config.split.held_out:.0f} % by {config.split.by}",
    }


def benchmark(call: Call) -> None:
    """Compares training and sampling with the plain way, by the model in `call.out`."""
    from voxelocity_lab.recipes.tractography.benchmark import benchmark as compare

    compare(call)
