"""What `voxelocity recipe tractography` does: train, predict, and compare with the plain way."""

from __future__ import annotations

from pathlib import Path

from voxelocity.observe import events_path, read_events
from voxelocity.recipes.call import Call
from voxelocity.recipes.pages import write_report
from voxelocity.recipes.tractography.bundles import Bundles
from voxelocity.recipes.tractography.generate import Generated, generate
from voxelocity.recipes.tractography.judge import Judgment, judge
from voxelocity.recipes.tractography.page import tract_document
from voxelocity.recipes.tractography.settings import settings
from voxelocity.recipes.tractography.train import TrainedTracts, divided, load_tracts, train_tracts
from voxelocity.recipes.tractography.volume import inside_of

_NUM_DRAWN = 4


def train(call: Call) -> None:
    """Trains on the streamlines of `call.data`; the model stays in `call.out`."""
    train_tracts(call, settings(call))


def predict(call: Call) -> None:
    """Makes streamlines with the model in `call.out`, and judges them by those of `call.data` that were held out.

    Writes `generated.trx` (or another format), `scores.json` and `report.html` there.
    """
    trained = load_tracts(call.out)
    config = trained.config
    training, real, notices = divided(trained, call.data)
    path = call.out / f"generated.{config.sample.format}"
    made = generate(trained, path, seed=call.seed, device=call.device, warn=notices.append)
    judgments = judge_all(trained, made, training, real)
    drawn = {
        name: (made.streamlines[made.bundle == number], real.of(number))
        for number, name in enumerate(trained.names)
        if name in sorted(judgments, key=lambda one: -judgments[one].num_real)[:_NUM_DRAWN]
    }
    document = tract_document(
        judgments,
        drawn,
        read_events(events_path(call.out)),
        settings=_in_words(trained, call.data, len(training)),
        seconds=made.seconds,
        num_generated=len(made.bundle),
        notices=notices,
    )
    write_report(call, document, path)


def judge_all(trained: TrainedTracts, made: Generated, training: Bundles, real: Bundles) -> dict[str, Judgment]:
    """The bundles of which streamlines were held out."""
    mask = trained.config.mask
    judgments = {}
    for number, name in enumerate(trained.names):
        members, known = made.streamlines[made.bundle == number], real.of(number)
        if len(known) and len(members):
            inside = inside_of(Path(mask), members) if mask else None
            judgments[name] = judge(members, known, training.of(number), is_inside=inside)
    return judgments


def _in_words(trained: TrainedTracts, data: Path, num_training: int) -> dict[str, str]:
    config = trained.config
    num_weights = sum(one.numel() for one in trained.network.parameters())
    steps = config.sample.num_steps
    return {
        "data": str(data),
        "streamlines": f"{num_training:,} in {len(trained.names)} bundles",
        "network": f"{num_weights / 1e6:.1f} million weights, {config.network.depth} blocks of {config.network.width}",
        "predicts": config.prediction,
        "sampled by": f"{config.sample.sampler}, {steps} steps",
        "held out": f"{100 * config.split.held_out:.0f} % by {config.split.by}",
    }


def benchmark(call: Call) -> None:
    """Compares training and sampling with the plain way, by the model in `call.out`."""
    from voxelocity.recipes.tractography.benchmark import benchmark as compare

    compare(call)
