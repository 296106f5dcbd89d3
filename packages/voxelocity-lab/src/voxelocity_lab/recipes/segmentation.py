"""What recipes of segmentation share: `voxelocity train`, predictions with pictures, and a race, by a recipe's keys."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from voxelocity.core.cases import Cases
from voxelocity.core.config import AUTO
from voxelocity.core.records import PREDICTIONS_PAGE
from voxelocity.core.requests.train import TrainRequest
from voxelocity.core.volume import VolumeRef
from voxelocity.infer import SPEC_NAME, CaseDivision, held_out_cases, predict_files
from voxelocity.infer.models.spec import read_object, read_spec
from voxelocity.report import factor_table
from voxelocity.training import RunContext, run_training
from voxelocity.training.run_folder import RunFolder
from voxelocity_lab.bench.race.rounds import run_rounds
from voxelocity_lab.bench.race.sides import SideName, plan_race
from voxelocity_lab.recipes.call import Call
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.host import cpu_budget
from voxelocity_observe.core.quantities import count_text
from voxelocity_observe.document import TableView

_LIMIT_S = 3600.0
_NUM_SEEDS = 3
_SIDES: tuple[SideName, ...] = ("fast", "plain", "ours")


def train_on(call: Call, cases: Cases, keys: Mapping[str, Any]) -> None:
    """Trains with fold 0 held out; `keys` are those of the plan, and `call.overrides` change any.

    A finished run that is to be resumed stays unchanged.
    """
    if call.resume and RunFolder(call.out).is_finished():
        call.console.print(f"the training in {call.out} is finished", highlight=False, soft_wrap=True)
        return
    request = TrainRequest(
        out=call.out,
        time_budget_s=call.time_budget_s or AUTO,
        seed=AUTO if call.resume else call.seed,
        device=call.device_choice,
        # A run that continues has its own settings.
        overrides=call.overrides if call.resume else {**keys, **call.overrides},
        resume=call.resume,
        overwrite=call.overwrite,
    )
    # Not `voxelocity.train`: its errors name keywords, and this is a command.
    result = run_training(cases, request, RunContext(console=call.console, sinks=call.sinks, spent_s=call.spent_s))
    call.console.print(f"{result.headline}; see {result.folder / 'report.html'}", highlight=False, soft_wrap=True)


def check_trained(out: Path) -> None:
    """Refuses a folder without a model of `voxelocity train`.

    Raises:
        InputError: there is none, or it is damaged or of another kind of recipe.
    """
    path = out / SPEC_NAME
    if not path.is_file():
        raise InputError(f"recipe: {out} holds no finished run ({SPEC_NAME}); train one first")
    other = read_object(path, unreadable="make it readable", damaged="train the model again").get("recipe")
    if other is not None:
        raise InputError(
            f"recipe: the model in {out} is one of the recipe {other}; name the folder of this one with -o"
        )


def read_division(call: Call) -> CaseDivision:
    """Which cases the model in `call.out` was trained on, and which were held out, by its own record.

    Raises:
        InputError: the model does not say.
    """
    division = read_spec(call.out / SPEC_NAME).division
    if division is None:
        raise InputError(
            f"recipe: the model in {call.out} does not say which cases it was trained on, so none can be called held "
            "out; train it again, or predict scans of your choice with voxelocity predict"
        )
    return division


def find_unseen_cases(call: Call, cases: Cases) -> list[VolumeRef]:
    """The labeled cases that the model in `call.out` has not seen, by its own record; what to know is printed.

    Raises:
        InputError: the model does not say what it was trained on, or was trained on all of them.
    """
    unseen, notices = held_out_cases(read_division(call), cases.refs)
    for notice in notices:
        call.console.print(f"warning: {call.data}: {notice}", style="yellow", highlight=False, soft_wrap=True)
    if not unseen:
        raise InputError(
            f"recipe: the model in {call.out} was trained on every labeled case or patient of {call.data}, so none is "
            "held out; name other data, or predict these with voxelocity predict"
        )
    return unseen


def predict_with_pictures(call: Call, scans: Sequence[Path], *, results: Call) -> None:
    """Predicts scans, as `voxelocity predict` takes them, with the run in `call.out` into `results.out/predictions`."""
    folder = results.out / "predictions"
    written = predict_files(
        [call.out],
        scans,
        folder,
        device=(call.device,),
        num_threads=cpu_budget(),
        previews=True,
        page=True,
        overwrite=True,
        warn=lambda text: call.console.print(f"warning: {text}", style="yellow", soft_wrap=True),
    )
    page = call.out / "report.html" if results is call else folder / PREDICTIONS_PAGE
    call.console.print(
        f"predicted {count_text(len(written), 'case')} into {folder}; see {page}", highlight=False, soft_wrap=True
    )


def race(
    call: Call,
    dataset: Path,
    *,
    title: str,
    summary: str,
    name: str,
    target_dice: float,
    keys: Mapping[str, Any],
    peer_keys: Mapping[str, Any],
) -> None:
    """Races MONAI's fast recipe and its plain script with three seeds; `name` is the recipe's.

    `keys` are those of the plan, equal on all sides; `peer_keys` are of the peers' plan alone.
    """
    RunFolder(call.out).open()
    limit_s = call.time_budget_s or _LIMIT_S
    overrides = {**peer_keys, **keys}
    planned = plan_race(dataset, call.out, overrides=overrides, keys=keys, target_dice=target_dice, limit_s=limit_s)
    seeds = range(call.seed, call.seed + _NUM_SEEDS)
    outcome = run_rounds(planned, _SIDES, seeds, on_start=lambda side, at: call.console.rule(f"{side}, seed {at}"))
    outcome.write(
        "race",
        title=title,
        summary=f"{summary} Seconds count from the start of each process, imports and caching included.",
        command=shlex.join(["voxelocity", "recipe", name, "benchmark", str(call.data), "-o", str(call.out)]),
    )
    call.console.print(TableView(factor_table(outcome.runs, target_dice=target_dice)))
    call.console.print(TableView(outcome.table))
