"""What recipes of segmentation share: `voxelocity train`, predictions with pictures, and a race, by a recipe's keys."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from voxelocity.core.cases import Cases
from voxelocity.core.config import AUTO
from voxelocity.core.records import PREDICTIONS_PAGE
from voxelocity.core.requests.train import TrainRequest
from voxelocity.core.volume import VolumeRef
from voxelocity.infer import SPEC_NAME, CaseDivision, held_out_cases, predict_files
from voxelocity.infer.models.spec import read_object, read_spec
from voxelocity.report import factor_table
from voxelocity.training import RunContext, run_training
from voxelocity.training.resume import SavedRun, conflicting_options, in_short
from voxelocity.training.run_folder import RunFolder
from voxelocity_lab.bench.race.rounds import Outcome, run_rounds
from voxelocity_lab.bench.race.sides import IN_FLOAT32, SideName, plan_race
from voxelocity_lab.recipes.call import Call
from voxelocity_observe.core.errors import ConfigError, InputError
from voxelocity_observe.core.host import cpu_budget
from voxelocity_observe.core.quantities import count_text
from voxelocity_observe.document import TableView

_LIMIT_S = 3600.0
_PHANTOMS = re.compile(r"phantoms(?::(?P<scale>\d*\.?\d+))?(?::(?P<cases>\d+))?")


def with_phantoms(call: Call, make: Callable[..., Path], *, num_cases: int) -> Call:
    """The call; if its data is the word `phantoms`, with phantoms, drawn next to the run, instead.

    `phantoms:0.25:12` asks for twelve with a quarter of the voxels per axis. Those that are there are kept.

    Args:
        call: of a recipe.
        make: called with a folder, a number of cases and `scale`.
        num_cases: if the call names none.

    Raises:
        ConfigError: they cannot be drawn so small or large.
        OutputError: the folder holds something else.
    """
    found = _PHANTOMS.fullmatch(str(call.data))
    if found is None or call.data.exists():
        return call
    # The current folder has no name of its own.
    out = call.out.absolute()
    folder = out.with_name(f"{out.name}-phantoms")
    num, scale = int(found["cases"] or num_cases), float(found["scale"] or 1.0)
    call.console.print(f"{count_text(num, 'phantom')} at {scale:g} of full size in {folder}", highlight=False)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Each rank asks for them.
    with FileLock(f"{folder}.lock"):
        return replace(call, data=make(folder, num, scale=scale))


def train_on(call: Call, cases: Cases, keys: Mapping[str, Any]) -> None:
    """Trains with fold 0 held out; `keys` are those of the plan, and `call.overrides` change any.

    A finished run that is to be resumed stays unchanged.
    """
    if call.resume and RunFolder(call.out).is_finished():
        call.console.print(f"the training in {call.out} is finished", highlight=False, soft_wrap=True)
        return
    target = {"train.target_dice": call.target_dice} if call.target_dice else {}
    request = TrainRequest(
        out=call.out,
        time_budget_s=call.time_budget_s or AUTO,
        seed=AUTO if call.resume else call.seed,
        device=call.device_choice,
        # A run that continues has its own settings; what is given here is compared with them.
        overrides={**({} if call.resume else keys), **target, **call.overrides},
        resume=call.resume,
        overwrite=call.overwrite,
    )
    # Not `voxelocity.train`: its errors name keywords, and this is a command.
    result = run_training(cases, request, RunContext(console=call.console, sinks=call.sinks, spent_s=call.spent_s))
    call.console.print(f"{result.headline}; see {result.folder / 'report.html'}", highlight=False, soft_wrap=True)


def check_trained(call: Call) -> None:
    """Refuses a folder without a model of `voxelocity train`, and settings that are not those of its training.

    Raises:
        InputError: there is none, or it is damaged or of another kind of recipe; or settings differ.
    """
    out, record = call.out, RunFolder(call.out).record
    path = out / SPEC_NAME
    if not path.is_file():
        raise InputError(f"recipe: {out} holds no finished run ({SPEC_NAME}); train one first")
    other = read_object(path, unreadable="make it readable", damaged="train the model again").get("recipe")
    if other is not None:
        raise InputError(
            f"recipe: the model in {out} is one of the recipe {other}; name the folder of this one with -o"
        )
    if call.overrides and record.is_file():
        given = TrainRequest(out=out, overrides=call.overrides, resume=True)
        if lines := conflicting_options(SavedRun.read(record), given):
            raise ConfigError(
                f"recipe: the model in {out} predicts as it was trained, but got {in_short(lines)}; leave out what "
                "differs, or train with it"
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


@dataclass(frozen=True, kw_only=True)
class Contest:
    """What the `benchmark` of a recipe trains.

    Attributes:
        recipe: its name.
        words: the task in words, which begins the title.
        summary: what all sides share.
        target_dice: mean Dice of the held-out cases that ends each training, if the call names none.
        keys: of the plan, on all sides.
        peer_keys: of the peers' plan alone.
        sides: ours last.
    """

    recipe: str
    words: str
    summary: str
    target_dice: float
    keys: Mapping[str, Any]
    peer_keys: Mapping[str, Any]
    sides: tuple[SideName, ...] = ("fast", "plain", "ours")


def race(call: Call, dataset: Path, contest: Contest) -> Outcome:
    """Races the sides of a contest, a round a seed; the page is `race.html`, every figure is in `race.json`.

    The limit of each training is the call's time budget.
    """
    RunFolder(call.out).open()
    target_dice = call.target_dice or contest.target_dice
    keys = {**contest.keys, **call.overrides, "train.target_dice": target_dice}
    limit_s = call.time_budget_s or _LIMIT_S
    planned = plan_race(
        dataset,
        call.out,
        overrides={**contest.peer_keys, **keys, **(IN_FLOAT32 if "float32" in contest.sides else {})},
        keys=keys,
        target_dice=target_dice,
        limit_s=limit_s,
        time_budget_s=limit_s,
        device=call.device_choice,
    )
    seeds = range(call.seed, call.seed + call.num_seeds)
    outcome = run_rounds(
        planned, contest.sides, seeds, on_start=lambda side, at: call.console.rule(f"{side}, seed {at}")
    )
    words = ["voxelocity", "recipe", contest.recipe, "benchmark", str(call.data), "-o", str(call.out)]
    words += ["--target", f"{target_dice:g}", "--time-budget", f"{limit_s:g}s", "--seeds", str(call.num_seeds)]
    words += [part for key, value in call.overrides.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    words += ["--seed", str(call.seed)] if call.seed else []
    words += ["--device", call.device_choice]
    outcome.write(
        "race",
        title=f"{contest.words} to a Dice of {target_dice:g}: MONAI and Voxelocity",
        summary=f"{contest.summary} Seconds count from the start of each process, imports and caching included.",
        command=shlex.join(words),
    )
    call.console.print(TableView(factor_table(outcome.runs, target_dice=target_dice)))
    call.console.print(TableView(outcome.table))
    return outcome
