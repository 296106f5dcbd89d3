"""Options that several commands share, and how their text becomes values."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from voxelocity.core.requests.plan import DeviceChoice
from voxelocity.core.requests.plan import read_device as read_choice
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.plain import excerpt, parse_yaml, read_mapping

_LONGEST_SHOWN = 60

Dataset = Annotated[
    Path,
    typer.Argument(
        help="An MSD or nnU-Net folder (with dataset.json), one such .json, or a .csv; `voxelocity init` makes one."
    ),
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda or auto.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="YAML file with keys of the plan.")]
NoTuned = Annotated[bool, typer.Option("--no-tuned", help="Ignore the settings that `voxelocity tune` found.")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="Set a key of the plan: --set data.batch_size=4.")]


def read_device(text: str) -> DeviceChoice:
    """One of the known devices, for commands without a request of their own.

    Raises:
        ConfigError: the text is not one of them.
    """
    try:
        known: dict[str, DeviceChoice] = {name: name for name in get_args(DeviceChoice)}
        return known[read_choice(text)]
    except KeyError:
        raise ConfigError(f"config: --device {text!r} is not known; choose cpu, cuda or auto") from None
    except ConfigError as error:
        raise ConfigError(f"config: --device {text!r}: {error}") from None


def check_is_no_run(dataset: Path) -> None:
    """Refuses the folder of a run in the place of a data set.

    Raises:
        ConfigError: it is one.
    """
    record = dataset / "run.yaml"
    if record.is_file() and not (dataset / "dataset.json").exists():
        raise ConfigError(
            f"config: {dataset} is the folder of a run; name its data set, listed in {record} as dataset.path, "
            f"or continue the run with voxelocity train --resume {shlex.quote(str(dataset))}"
        )


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
            shown = excerpt(value, _LONGEST_SHOWN)
            raise ConfigError(f"config: {option} {key.strip()}: {shown!r} is not a YAML value ({error})") from None
    return values
