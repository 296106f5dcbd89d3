"""Options that several commands share, and how their text becomes values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.plain import parse_yaml, read_mapping
from voxelocity_observe.core.quantities import parse_duration_s

if TYPE_CHECKING:
    # Imports numpy, which neither --help nor the doctor may need.
    from voxelocity.core.cases import Fold

_LONGEST_SHOWN = 60

Dataset = Annotated[
    Path,
    typer.Argument(
        help="An MSD or nnU-Net folder (with dataset.json), one such .json, or a .csv; `voxelocity init` makes one."
    ),
]
FoldText = Annotated[str, typer.Option("--fold", help="Fold to hold out, or 'all' to train and validate on all cases.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of weights, order, patches and augmentation.")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda or auto.")]
Budget = Annotated[str, typer.Option("--time-budget", help="End by then, validation and report included: 90s, 5m, 1h.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="YAML with keys of the plan to fix.")]
NoTuned = Annotated[bool, typer.Option("--no-tuned", help="Leave out what `voxelocity tune` found on this machine.")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="Fix one key of the plan: --set data.batch_size=4.")]


def read_fold(text: str) -> Fold:
    """A fold number or "all".

    Raises:
        ConfigError: the text is neither.
    """
    if text == "all":
        return "all"
    if not text.isdecimal():
        raise ConfigError(f"config: --fold {text!r} is neither a number from 0 nor 'all'")
    return int(text)


def read_folds(text: str) -> tuple[int, ...]:
    """The numbers in "0,2"; none for "all".

    Raises:
        ConfigError: the text is neither.
    """
    if text == "all":
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"config: --folds {text!r} is neither 'all' nor numbers such as 0,2")
    return tuple(map(int, parts))


def read_device(text: str, *, others: Sequence[str] = ()) -> Any:
    """One of the known devices, or of the others that a command takes.

    Raises:
        ConfigError: the text is not one of them.
    """
    if re.fullmatch(r"cuda:\d+", text):
        number = text.partition(":")[2]
        raise ConfigError(
            f"config: --device {text!r}: the first visible GPU is used; for number {number} start the command with "
            f"CUDA_VISIBLE_DEVICES={number} and give --device cuda"
        )
    known = ("cpu", "cuda", *others, "auto")
    if text not in known:
        raise ConfigError(f"config: --device {text!r} is not known; choose {', '.join(known[:-1])} or {known[-1]}")
    return text


def check_is_no_run(dataset: Path) -> None:
    """Refuses the folder of a run in the place of a data set.

    Raises:
        ConfigError: it is one.
    """
    record = dataset / "run.yaml"
    if record.is_file() and not (dataset / "dataset.json").exists():
        raise ConfigError(
            f"config: {dataset} is the folder of a run; name its data set, which stands in {record} as dataset.path, "
            f"or continue the run with voxelocity train --resume {shlex.quote(str(dataset))}"
        )


def read_budget_s(text: str) -> float:
    """Seconds of a time budget; 0 if none is given.

    Raises:
        ConfigError: the text is not a duration.
    """
    return parse_duration_s(text) if text else 0.0


def read_overrides(config: Path | None, sets: list[str] | None, *, no_tuned: bool = False) -> dict[str, Any]:
    """Keys of the plan to fix: those of the file first, then those of `--set`, which win.

    A `run.yaml` can be given unchanged: its plan counts, without the places and the code that it names.

    Raises:
        ConfigError: the file cannot be read or is not a mapping, or is that of a run and names code, or a `--set` has
            no `=`.
    """
    values: dict[str, Any] = {}
    if config is not None:
        loaded = read_mapping(config, where="config", holds="keys and values, such as 'seed: 1'")
        if isinstance(loaded.get("plan"), dict):
            # The record of a run, which may be someone else's.
            from voxelocity.planning import keys_of_record

            values |= keys_of_record(loaded["plan"], read_assignments(sets or []), where=str(config))
        else:
            values |= loaded
    values |= read_assignments(sets or [])
    return {**values, "planner.use_tuned": False} if no_tuned else values


def read_assignments(texts: Sequence[str], *, option: str = "--set") -> dict[str, Any]:
    """The values in "key=value", by key; `option` is where the user wrote them.

    Raises:
        ConfigError: a text has no `=`, or its value is not YAML.
    """
    values: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"config: {option} {text!r} has no '='; write {option} key=value")
        try:
            values[key.strip()] = parse_yaml(value)
        except ValueError as error:
            shown = value if len(value) <= _LONGEST_SHOWN else f"{value[:_LONGEST_SHOWN]}..."
            raise ConfigError(f"config: {option} {key.strip()}: {shown!r} is not a YAML value ({error})") from None
    return values
