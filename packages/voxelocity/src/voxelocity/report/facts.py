"""Reads the facts of a run from its folder. Judges and draws nothing, writes nothing."""

from __future__ import annotations

import json
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from voxelocity.core.learning import read_mark
from voxelocity.core.records import MEASURES, CaseScore, Choice, Measured
from voxelocity.report.pictures import PLANES
from voxelocity.report.records import (
    CheckpointRecord,
    DatasetFacts,
    FinishRecord,
    RankRecord,
    RunFacts,
    SliceFigure,
    SliceStack,
    StageRecord,
    StartRecord,
    Status,
    StepRecord,
    ValidationRecord,
)
from voxelocity_observe.core.errors import InputError, missing_path
from voxelocity_observe.core.events import events_path, read_events
from voxelocity_observe.core.plain import parse_yaml, shortened
from voxelocity_observe.core.whole_file import check_is_file

# Nothing in a run comes near it, and sums of such numbers stay finite.
_NO_NUMBER = 1e200
# Null in the log where they were not finite.
_NUMBERS = ("loss", "learning_rate", "mean_dice", "images_per_s", "wait_share")

_Record = TypeVar("_Record")

FolderKind = Literal["run", "monitor", "diagnosis"]
_MARKS: dict[str, FolderKind] = {"run.yaml": "run", "monitor.json": "monitor", "diagnosis.json": "diagnosis"}


def read_run(folder: str | Path) -> RunFacts:
    """What the folder of a run says so far. The run may be unfinished, still going, or killed while it wrote a line.

    Raises:
        InputError: the folder holds no run, or one of its files is damaged or of another version.
    """
    folder = Path(folder)
    record = _read_record(folder / "run.yaml")
    if "dataset" not in record and (recipe := record.get("recipe")):
        raise InputError(
            f"report: {folder} holds a training of the recipe {shortened(recipe)}, whose page `voxelocity recipe "
            f"{shortened(recipe)} predict DATA -o RUN` writes; name the folder of a run of `voxelocity train`"
        )
    events = _Events(events_path(folder))
    try:
        choices = tuple(_choice(choice) for choice in record.get("choices") or ())
        dataset = _dataset(_mapping(record, "dataset"))
        plan, fingerprint = _mapping(record, "plan"), _mapping(record, "fingerprint")
        seed = None if record.get("seed") is None else int(record["seed"])
    except (TypeError, ValueError) as error:
        raise InputError(
            f"report: {folder / 'run.yaml'} was written by another version or was changed ({error}); "
            "restore it or train again"
        ) from None
    slices, damage = _read_slices(folder / "slices.npz")
    events.warnings.extend(damage)
    scores = folder / "scores.json"
    # A run that gets more time has those of its first part, which are no scores where that was too short.
    is_marked = events.finish is None and bool(read_mark(scores))
    return RunFacts(
        folder=folder,
        dataset=dataset,
        fingerprint=fingerprint,
        plan=plan,
        choices=choices,
        seed=seed,
        device=str(record.get("device") or ""),
        command=str(record.get("command", "")),
        scores=() if is_marked else _read_scores(scores),
        slices=slices,
        ranks=_ranks(folder, events.steps),
        **events.fields(),
    )


def _ranks(folder: Path, steps: Sequence[StepRecord]) -> tuple[RankRecord, ...]:
    """Every rank's part in the steps that all of them made, the first one's given; none if there was only one.

    Sessions of a run may have had other numbers of ranks.
    """
    numbers = {path: path.stem.removeprefix("events-rank") for path in folder.glob("events-rank*.jsonl")}
    # A copy that someone made has no number alone.
    others = {int(number): _Events(path).steps for path, number in numbers.items() if number.isdecimal()}
    of_ranks = sorted({0: steps, **others}.items())
    # All ranks sum up the same steps.
    common = set.intersection(*({record.step for record in stretches} for _, stretches in of_ranks))
    if not others or not common:
        return ()
    found = []
    for rank, stretches in of_ranks:
        records = [record for record in stretches if record.step in common]
        parts: dict[str, float] = {}
        for part, seconds in (item for record in records for item in record.parts.items()):
            parts[part] = parts.get(part, 0.0) + seconds
        seconds, num_steps = (sum(getattr(record, name) for record in records) for name in ("seconds", "num_steps"))
        found.append(RankRecord(rank=rank, seconds=seconds, num_steps=num_steps, parts=parts))
    return tuple(found)


class _Events:
    """The events of a run, sorted into records as they are met."""

    def __init__(self, path: Path) -> None:
        self.status: Status = "unfinished"
        self.starts: list[StartRecord] = []
        self.stages: list[StageRecord] = []
        self.steps: list[StepRecord] = []
        self.validations: list[ValidationRecord] = []
        self.checkpoints: list[CheckpointRecord] = []
        self.warnings: list[str] = []
        self.keep_largest: dict[str, tuple[float, float]] = {}
        self.parallel_mode, self.parallel_reason = "", ""
        self.signal_number: int | None = None
        self.finish: FinishRecord | None = None
        self.lost_s = 0.0
        self.last_event_s = 0.0
        for event in read_events(path) if path.exists() else ():
            try:
                self._add(event)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise InputError(
                    f"report: {path}: event '{event['event']}' at {event['time_s']} s cannot be used "
                    f"({type(error).__name__}: {error}); render this run with the version that wrote it"
                ) from None

    def fields(self) -> dict[str, Any]:
        """The fields of `RunFacts` that come from events."""
        return {name: tuple(value) if isinstance(value, list) else value for name, value in vars(self).items()}

    def _add(self, event: Mapping[str, Any]) -> None:
        time_s = float(event["time_s"])
        self.last_event_s = max(self.last_event_s, time_s)
        match event["event"]:
            case "run_started":
                # A finished run is only validated again, and has its scores until new ones replace them.
                self.status = "finished" if self.finish else "unfinished"
                self.starts.append(StartRecord(time_s=time_s, environment=_mapping(event, "environment")))
            case "stage":
                self.stages.append(_record(StageRecord, event, time_s))
            case "steps":
                self._add_steps(step_record(event))
            case "validation":
                self._add_validation(validation_record(event))
            case "checkpoint":
                self.checkpoints.append(_record(CheckpointRecord, event, time_s))
                # A run that is killed late may be resumed and end without another step.
                self._go_back(self.checkpoints[-1].step)
            case "warning":
                self.warnings.append(str(event["text"]))
            case "keep_largest":
                classes = _mapping(event, "classes").items()
                self.keep_largest = {str(name): (_finite(old), _finite(new)) for name, (old, new) in classes}
            case "parallel":
                self.parallel_mode, self.parallel_reason = str(event["mode"]), str(event["reason"])
            case "interrupted":
                self.signal_number = _count(event["signal"])
                self.status = "finished" if self.finish else "interrupted"
            case "extended":
                # It has the scores of its first part until new ones replace them, but is not at its end.
                self.status, self.finish = "unfinished", None
            case "run_finished":
                self.status, self.finish = "finished", _record(FinishRecord, event, time_s)

    def _add_validation(self, record: ValidationRecord) -> None:
        # The checkpoint before a validation knows nothing of it, so a resumed run may do it again.
        if self.validations and self.validations[-1].step == record.step:
            self.lost_s += self.validations.pop().seconds
        self.validations.append(record)

    def _add_steps(self, record: StepRecord) -> None:
        self._go_back(record.step - record.num_steps)
        self.steps.append(record)

    def _go_back(self, step: int) -> None:
        """A resumed run continues from its last checkpoint: what came after that is done again and does not count."""
        records: list[Any]
        for records in (self.steps, self.validations):
            while records and records[-1].step > step:
                self.lost_s += records.pop().seconds


def step_record(event: Mapping[str, Any]) -> StepRecord:
    """An event "steps"; ValueError, KeyError or TypeError if it is damaged, as for `validation_record`."""
    parts = {str(name): _finite(seconds) for name, seconds in (event.get("parts") or {}).items()}
    return _record(StepRecord, event, float(event["time_s"]), parts=parts)


def validation_record(event: Mapping[str, Any]) -> ValidationRecord:
    """An event "validation"."""
    dice = {str(name): _number(value) for name, value in event["dice"].items()}
    return _record(ValidationRecord, event, float(event["time_s"]), dice=dice)


def _record(kind: type[_Record], event: Mapping[str, Any], time_s: float, **others: Any) -> _Record:
    """The record of an event, each value checked by the type of its field; `others` are fields that need more."""
    values: dict[str, Any] = {"time_s": time_s, **others}
    for field in fields(kind):  # type: ignore[arg-type]  # a record is a dataclass, which mypy does not see of type[T]
        if field.name in values:
            continue
        declared, _, is_optional = str(field.type).partition(" | ")
        if is_optional and event.get(field.name) is None:
            values[field.name] = None
        elif field.name in _NUMBERS:
            values[field.name] = _number(event[field.name])
        else:
            values[field.name] = _CHECKS[declared](event[field.name])
    return kind(**values)


def _number(value: float | None) -> float:
    """The event log writes null where a number was not finite."""
    return math.nan if value is None else _finite(value)


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < _NO_NUMBER:
        raise ValueError(f"{shortened(value)} is not a number")
    return float(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _NO_NUMBER:
        raise ValueError(f"{shortened(value)} is not a count")
    return value


_CHECKS: Mapping[str, Callable[[Any], Any]] = {"int": _count, "float": _finite, "str": str, "bool": bool}


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = parse_yaml(check_is_file(path).read_text(encoding="utf-8"))
    except OSError as error:
        if not path.parent.exists():
            raise InputError(f"report: {missing_path(path.parent)}; name the folder of a run") from None
        folds = sorted(fold.parent.name for fold in path.parent.glob(f"fold_*/{path.name}"))
        which = f"one of {', '.join(folds)} in it" if folds else "the folder that `voxelocity train` wrote"
        raise InputError(f"report: cannot read {path} ({error.strerror}); name {which}") from None
    # Bytes that are not UTF-8 raise a ValueError too.
    except ValueError as error:
        raise InputError(f"report: {path} is damaged ({error}); restore it or train again") from None
    if not isinstance(record, dict):
        raise InputError(f"report: {path} holds no run, but {type(record).__name__}; restore it or train again")
    return record


def _mapping(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = record.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"'{key}' is {shortened(value)}, not keys and values")
    return value


def _choice(values: Any) -> Choice:
    if not isinstance(values, Mapping):
        raise ValueError(f"a choice is {shortened(values)}, not keys and values")
    measured = values.get("measured")
    choice = Choice(**{**values, "measured": None if measured is None else Measured(**measured)})
    for name in ("key", "reason"):
        if not isinstance(getattr(choice, name), str):
            raise ValueError(f"a choice has the {name} {shortened(getattr(choice, name))}, which is not text")
    return choice


def _dataset(values: Mapping[str, Any]) -> DatasetFacts:
    fields = {key: value for key, value in values.items() if key in DatasetFacts.__dataclass_fields__}
    for key in ("classes", "channels"):
        fields[key] = tuple(str(name) for name in fields.get(key) or ())
    for key in ("regions", "merged"):
        fields[key] = dict(fields.get(key) or {})
    fields["exposed"] = {str(name): str(why) for name, why in dict(fields.get("exposed") or {}).items()}
    fields["name"] = str(fields.get("name") or "data set")
    for key in ("num_cases", "num_training", "num_validation"):
        fields[key] = int(fields.get(key) or 0)
    return DatasetFacts(**fields)


def _read_scores(path: Path) -> tuple[CaseScore, ...]:
    if not path.exists():
        return ()
    try:
        cases = json.loads(check_is_file(path).read_text(encoding="utf-8"))["cases"]
        return tuple(map(_score, cases))
    # Brackets can be nested deeper than Python goes.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"report: {path} cannot be used ({error}); delete it to render the page without it") from None


def _score(case: Mapping[str, Any]) -> CaseScore:
    # None is a class that is in neither truth nor prediction.
    dice: dict[str, Any] = {
        str(name): None if value is None else _finite(value) for name, value in case["dice"].items()
    }
    if not isinstance(case["case_id"], str) or not dice:
        raise ValueError(f"a case is called {shortened(case['case_id'])} and has {len(dice)} classes")
    fields = {key: value for key, value in case.items() if key in CaseScore.__dataclass_fields__}
    measures = {
        key: {str(name): None if value is None else _finite(value) for name, value in _mapping(case, key).items()}
        for key in MEASURES
        if key != "dice"
    }
    estimated = tuple(map(str, case.get("hd95_estimated", ())))
    return CaseScore(**{**fields, **measures, "dice": dice, "hd95_estimated": estimated})


def _read_slices(path: Path) -> tuple[tuple[SliceFigure, ...], list[str]]:
    """The slices, or why there are none: bad pictures do not keep the rest of a run from being read."""
    if not path.exists():
        return (), []
    try:
        with check_is_file(path).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            count = sum(name.endswith("_title") for name in arrays.files)
            return tuple(_slices(arrays, i) for i in range(count)), []
    # The zip's and the arrays' headers may say anything: an unknown packing, more bytes than there are.
    except (
        OSError, ValueError, KeyError, EOFError, RuntimeError, MemoryError, struct.error, zipfile.BadZipFile, zlib.error
    ) as error:  # fmt: skip
        return (), [f"report: {path.name} cannot be used ({error}), so no slices are shown"]


def _slices(arrays: Mapping[str, Any], index: int) -> SliceFigure:
    planes = [plane for plane in PLANES if f"{index}_{plane}_image" in arrays]
    stacks = tuple(_stack(arrays, plane, f"{index}_{plane}_") for plane in planes)
    # Earlier versions kept one axial slice of a case.
    return SliceFigure(title=str(arrays[f"{index}_title"]), stacks=stacks or (_stack(arrays, "axial", f"{index}_"),))


def _stack(arrays: Mapping[str, Any], plane: str, prefix: str) -> SliceStack:
    image, truth, prediction = (arrays[f"{prefix}{name}"] for name in ("image", "truth", "prediction"))
    shapes = {image.shape, truth.shape, prediction.shape}
    if len(shapes) != 1 or image.ndim not in (2, 3) or not image.size:
        raise ValueError(f"slices {prefix.rstrip('_')} have arrays of the shapes {sorted(shapes)}")
    height_mm, width_mm = arrays.get(f"{prefix}pixel_mm", (1.0, 1.0))
    if not (0.0 < height_mm < math.inf and 0.0 < width_mm < math.inf):
        raise ValueError(f"slices {prefix.rstrip('_')} have pixels of {height_mm} by {width_mm} mm")
    image, truth, prediction = (array.reshape(-1, *array.shape[-2:]) for array in (image, truth, prediction))
    return SliceStack(
        plane=plane, image=image, truth=truth, prediction=prediction, pixel_mm=(float(height_mm), float(width_mm))
    )


def folder_kind(folder: Path) -> FolderKind | None:
    """The kind of a folder, by the file that only its command writes; None where it holds none of them.

    A run that was watched as well is a run.
    """
    return next((kind for name, kind in _MARKS.items() if (folder / name).is_file()), None)
