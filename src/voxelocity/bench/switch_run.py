"""`voxelocity bench amp|compile|muon|...`: one setting off and on, from its name to a report."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from voxelocity.bench.phantom import PhantomSet, default_folder
from voxelocity.bench.places import made
from voxelocity.bench.switch_report import SwitchReport
from voxelocity.bench.switched import Trainings, TrainOnce, run_switched, train_afresh
from voxelocity.bench.switches import SWITCHES, Device, make_switch, this_device
from voxelocity.observe import environment
from voxelocity.report import RunFacts

_QUICK = Trainings(
    cases=PhantomSet(kind="ct", shape=(20, 24, 20), num_cases=6),
    num_held_out=3,
    steps=6,
    rounds=2,
    plan={
        "network.name": "unet",
        "network.widths": [4, 8],
        "network.strides": [[2, 2, 2]],
        "data.patch.shape_voxel": [16, 16, 16],
        "window.shape_voxel": [16, 16, 16],
    },
)
"""In a minute: to see that it runs here."""


def run_switch(
    name: str,
    *,
    quick: bool,
    work: Path | None = None,
    device: Device | None = None,
    train: TrainOnce = train_afresh,
    on_run: Callable[[str, RunFacts], None] = lambda label, run: None,
) -> SwitchReport:
    """Trains with the setting off and on, alternating.

    Args:
        name: one of `SWITCHES`.
        quick: tiny; its figures mean nothing.
        work: where phantoms are kept for the next time; below the system's temporary folder if not given.
        device: what `this_device` says, if not given.
        train: trains once.
        on_run: called with the label of the side and each run when it is done.

    Raises:
        InputError: the setting means nothing on this device.
        OutputError: the work folder cannot be written.
        VoxelocityError: a training failed.
    """
    assert name in SWITCHES, name
    device = device or this_device()
    switch = make_switch(name, device)
    trainings = _QUICK if quick else Trainings()
    switched = run_switched(switch, trainings, made(work or default_folder()), train=train, on_run=on_run)
    return SwitchReport(
        switched=switched,
        trainings=trainings,
        device=device.words,
        command=f"voxelocity bench {name}" + (" --quick" if quick else ""),
        date=time.strftime("%Y-%m-%d"),
        environment=environment(),
        is_quick=quick,
    )
