"""How a run was started, as `run.yaml` keeps it, and what a command that resumes it must not change.

The checks refuse what would train into the wrong run, before anything is written.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from voxelocity.core.cases import Cases, Fold
from voxelocity.core.class_merging import merge_cases
from voxelocity.core.config import AUTO, flatten
from voxelocity.core.remote import remote_url
from voxelocity.core.requests.train import MoreTime, TrainRequest
from voxelocity.data.pipeline import declare_channels, declare_labels
from voxelocity.infer import CaseDivision
from voxelocity.planning import PLACES, Plan, Planned, read_overrides, steps_of_passes, without_places
from voxelocity.planning.plans_file import plans_keys
from voxelocity.report import read_run
from voxelocity.training.checkpoint import Checkpoints
from voxelocity.training.run_folder import RunFolder
from voxelocity_observe.core.credentials import hide_credentials
from voxelocity_observe.core.errors import ConfigError, InputError, OutputError
from voxelocity_observe.core.host import cpu_budget
from voxelocity_observe.core.plain import parse_yaml, shortened
from voxelocity_observe.core.quantities import count_text, duration_text, listed

_NUM_NAMED = 3
# Keys of a rotating cache that decide which cases an epoch trains on.
_DRAWING_KEYS = ("tier", "num_cases", "replace_rate")
# How a plan is made and shared among ranks, not what it says.
_FREE_SECTIONS = ("planner", "parallel")
_START_CASES = "start_cases"


@dataclass(frozen=True, kw_only=True)
class SavedRun:
    """The beginning of a run.

    Attributes:
        plan: every setting.
        fold: which cases were held out, or "all".
        device: where it was trained; "" if that was not stored.
        dataset: path, channels, classes and labels of the data set.
        case_ids: ids of the cases for "training" and for "validation"; empty for runs that did not store them.
        source: "folder" and "weights_sha256" of the model that it was started from, with its "mapping" of names and the
            losses of all that were "tried"; empty for new weights.
        start_cases: of that model; None if they are not known.
    """

    plan: Plan
    fold: Fold
    device: str
    dataset: Mapping[str, Any]
    case_ids: Mapping[str, Sequence[str]]
    source: Mapping[str, Any]
    start_cases: CaseDivision | None

    @property
    def exposed(self) -> dict[str, str]:
        """Held-out cases from which the model that it started from may have learned, and why."""
        kept = self.dataset.get("exposed")
        return {str(name): str(why) for name, why in kept.items()} if isinstance(kept, Mapping) else {}

    @classmethod
    def read(cls, path: Path) -> Self:
        """The beginning of a run, from its `run.yaml`.

        Raises:
            ConfigError: the file is damaged or was written by another version.
        """
        try:
            record = parse_yaml(path.read_text(encoding="utf-8"))
        # Text that is not UTF-8 raises ValueError too.
        except (ValueError, OSError) as error:
            raise _damage(path, f"cannot be read ({error})") from None
        if not isinstance(record, dict):
            raise _damage(path, f"holds no run, but {shortened(record)}")
        return cls.parse(record, where=str(path))

    @classmethod
    def parse(cls, record: Mapping[str, Any], *, where: str) -> Self:
        """The same from the content of the file."""
        dataset = _mapping(record, "dataset", where=where)
        fold = dataset.get("fold")
        if fold != "all" and not isinstance(fold, int):
            raise _damage(where, f"names no fold ({shortened(fold)})")
        case_ids = _mapping(record, "cases", where=where) if "cases" in record else {}
        if not all(isinstance(ids, list) and all(isinstance(name, str) for name in ids) for ids in case_ids.values()):
            raise _damage(f"{where}:", "'cases' is damaged")
        try:
            plan = Plan.parse(_mapping(record, "plan", where=where), where=where)
        except ConfigError as error:
            raise ConfigError(f"{error}; restore it, or start again with --overwrite") from None
        source = _mapping(record, "start", where=where) if "start" in record else {}
        return cls(
            plan=plan,
            fold=fold,
            device=str(record.get("device") or ""),
            dataset=dataset,
            case_ids=case_ids,
            source=source,
            start_cases=_start_cases(record, where=where),
        )

    def with_more_time(self, more_s: float, *, taken_s: float, is_finished: bool) -> Self:
        """The run as if it had been started to end `more_s` after the `taken_s` that it took, by the clock alone.

        A target ended a finished run, or would end it again at once.
        """
        train = self.plan.train
        target_dice = 0.0 if is_finished else train.target_dice
        longer = {"time_budget_s": taken_s + more_s, "steps": 0, "target_dice": target_dice}
        return replace(self, plan=self.plan.model_copy(update={"train": train.model_copy(update=longer)}))

    def dataset_path(self, *, where: str) -> Path:
        """Where the data set of the run was.

        Raises:
            ConfigError: it was not stored, or is on a server, to which nobody asked to connect.
        """
        path = self.dataset.get("path")
        if not isinstance(path, str) or not path:
            raise ConfigError(f"train: {where} names no data set; give it: voxelocity train DATASET -o RUN --resume")
        if url := remote_url(path):
            raise ConfigError(
                f"train: {where} names a data set on a server ({hide_credentials(url)}), and may come from someone "
                "else; if you want to connect there, name it: voxelocity train URL -o RUN --resume"
            )
        return Path(path)


def saved_run_record(planned: Planned) -> dict[str, Any]:
    """What `run.yaml` keeps of a run's beginning, as plain data. The cases, which may be many, come last."""
    record = planned.to_record()
    record["dataset"] |= {"labels": dict(planned.cases.labels), "ignore_value": planned.cases.ignore_value}
    before = {} if planned.before is None else {_START_CASES: planned.before.to_plain()}
    return {**record, "cases": _case_ids(planned.cases, planned.fold), **before}


def record_more_time(folder: RunFolder, saved: SavedRun, *, taken_s: float) -> None:
    """Writes the length of a run that got more time, see `SavedRun.with_more_time`, into its record."""
    record = parse_yaml(folder.record.read_text(encoding="utf-8"))
    assert isinstance(record, dict), "read before"
    train = saved.plan.to_plain()["train"]
    record["plan"] = saved.plan.to_plain()
    for choice in record.get("choices") or ():
        if choice["key"] in ("train.steps", "train.time_budget_s", "train.target_dice"):
            choice["value"] = train[choice["key"].partition(".")[2]]
            choice["reason"] = f"it got more time after {duration_text(taken_s)}"
    record["parts_s"] = [*(record.get("parts_s") or ()), taken_s]
    folder.write_record(record)


def run_to_resume(folder: RunFolder, request: TrainRequest) -> SavedRun | None:
    """The run in the folder, whose files were checked; None if the command starts a new run.

    Raises:
        InputError: the request contradicts the folder, the run is finished or damaged, or it is finished
            and has no checkpoint left to validate.
    """
    if request.resume and not folder.holds_run:
        cure = folder.cure_without_run("leave it out to start one")
        raise request.refusal(f"{folder.path} holds no run to resume; {cure}", "resume")
    if request.overwrite or not folder.holds_run:
        return None
    is_finished, shown = folder.is_finished(), shlex.quote(str(folder.path))
    is_more = isinstance(request.time_budget_s, MoreTime)
    if is_finished and not (request.resume and (request.full_validation or is_more)):
        has_page = folder.report.is_file()
        page = "" if has_page else f" (`voxelocity report {shown}` renders its page, which is missing)"
        cure = "train it for longer with --resume and a --time-budget such as +10m, choose another folder with -o"
        if request.resume:
            cure = (
                "to train its network for longer, add a --time-budget such as +10m, or start another run with --from "
                "and another folder with -o"
            )
        raise OutputError(
            f"train: {folder.path} already holds a finished run{page}; {cure}, or replace it with --overwrite"
        )
    if is_finished and not Checkpoints(folder.checkpoints, keep=1).paths():
        # A new network would be validated, and its scores would replace those of the run.
        raise InputError(
            f"train: {folder.checkpoints} holds no checkpoint, so the finished run can be neither continued nor "
            f"validated again; restore one, or score its predictions: voxelocity predict {shown} ..., then voxelocity "
            "evaluate"
        )
    saved = SavedRun.read(folder.record)
    # Pictures and report will read all of it, so damage must be found before hours of training.
    read_run(folder.path)
    return saved


def check_data(folder: RunFolder, saved: SavedRun, cases: Cases) -> Cases:
    """The cases with their classes declared.

    Raises:
        InputError: they are not the run's.
    """
    lines = other_path(saved, cases)
    moved = f"; if the same data set was moved, correct dataset.path in {folder.record}" if lines else ""
    if not lines:
        cases = declare_labels(declare_channels(cases), num_threads=cpu_budget())
        # They are merged when the plan is made.
        lines = other_data(saved, merge_cases(cases, saved.plan.classes.merge))
    if lines:
        raise InputError(
            f"train: {folder.path} holds an unfinished run on another data set ({in_short(lines)}); choose another "
            f"folder with -o, or replace the run with --overwrite{moved}"
        )
    return cases


def check_options(folder: RunFolder, saved: SavedRun, request: TrainRequest) -> None:
    """Refuses options that contradict the run; see `conflicting_options`.

    Raises:
        InputError: one of them does.
    """
    if lines := conflicting_options(saved, request):
        raise InputError(
            f"train: --resume continues the run in {folder.path} as it was started, but got {in_short(lines)}; "
            "leave out what differs, choose another folder with -o, or replace the run with --overwrite"
        )


def check_plan(folder: RunFolder, saved: SavedRun, planned: Planned) -> None:
    """Refuses to continue the run with a plan that would train it differently.

    Raises:
        InputError: the plan or the fold is not the run's.
    """
    before, now = saved.plan.to_plain(), planned.plan.to_plain()
    # Where cases are kept depends on the memory that is free at the moment, and does not change results; which cases an
    # epoch draws does.
    cache, new_cache = before["data"]["cache"], now["data"]["cache"]
    drawing = _DRAWING_KEYS if "rotating" in (cache["tier"], new_cache["tier"]) else ()
    before["data"]["cache"] = {**new_cache, **{key: cache[key] for key in ("num_parts", *drawing)}}
    before |= {section: now[section] for section in _FREE_SECTIONS}
    lines = differing_keys(before, now)
    if saved.fold != planned.fold:
        lines.append(f"fold: {saved.fold} -> {planned.fold}")
    if lines:
        raise InputError(
            f"train: {folder.path} holds an unfinished run with another plan ({in_short(lines)}); "
            "continue it with its own plan with --resume, or replace it with --overwrite"
        )


def other_path(saved: SavedRun, cases: Cases) -> list[str]:
    """One line if the data set is in another place than the run's, else no line."""
    now = {"path": str(cases.root.resolve())}
    return differing_keys(_stored(saved, now), now)


def other_data(saved: SavedRun, cases: Cases) -> list[str]:
    """What differs between the run's data set and this one, whose classes are declared, as lines of text.

    Values that an earlier version did not store are not compared.
    """
    lines = []
    if saved.case_ids:
        now_ids = _case_ids(cases, saved.fold)
        for part, ids in now_ids.items():
            lines.extend(_moved_cases(part, before=saved.case_ids.get(part, ()), now=ids))
    now: dict[str, Any] = {"channels": list(cases.channels)}
    if "labels" in saved.dataset:
        now |= {
            "labels": dict(cases.labels),
            "regions": {name: list(indices) for name, indices in cases.regions.items()},
            "ignore_value": cases.ignore_value,
        }
    else:
        now["classes"] = list(cases.class_names)
    return lines + differing_keys(_stored(saved, now), now)


def conflicting_options(saved: SavedRun, request: TrainRequest) -> list[str]:
    """The given values that differ from the run's, as `--seed 4 where 0 is stored`. "auto" does not count as given.

    Raises:
        InputError: an override is unknown or out of range, or the plans cannot be read.
    """
    lines = []
    stored = flatten(Plan, saved.plan.to_plain())
    budget_s = stored["train.time_budget_s"]
    fixed = {
        "fold": (saved.fold, saved.fold),
        "seed": (stored["seed"], stored["seed"]),
        "time_budget_s": (budget_s, duration_text(float(budget_s)) if budget_s else "none"),
    }
    for name, (value, text) in fixed.items():
        given = getattr(request, name)
        if given not in (AUTO, value) and not isinstance(given, MoreTime):
            lines.append(f"{request.spelled(name)} where {text} is stored")
    data = saved.plan.data
    if request.epochs is not None and saved.case_ids:
        steps = steps_of_passes(
            request.epochs,
            len(saved.case_ids.get("training", ())),
            draws_per_case=data.patch.draws_per_case,
            batch_size=data.batch_size,
        )
        if steps != stored["train.steps"]:
            lines.append(f"{request.spelled('epochs')} where {count_text(stored['train.steps'], 'step')} are stored")
    given = read_overrides(request.overrides)
    if request.plans is not None:
        of_file, _ = plans_keys(request.plans, num_channels=len(saved.dataset.get("channels") or ()))
        given = {**read_overrides(of_file), **given}
    for key, value in given.items():
        if value != stored[key] and not _is_free(key):
            lines.append(f"{key}={value} where {stored[key]} is stored")
    return lines


def resumed_keys(saved: SavedRun, overrides: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """All keys of the run, with those that may change when it continues as they are given now.

    Args:
        saved: the run.
        overrides: of the command.
        where: the file of the run, for messages.
    """
    given = {key: value for key, value in flatten(Plan, overrides).items() if _is_free(key)}
    return {**without_places(flatten(Plan, saved.plan.to_plain()), given, where=where), **given}


def _is_free(key: str) -> bool:
    return key.partition(".")[0] in _FREE_SECTIONS or key in PLACES


def differing_keys(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted keys whose values differ between two plain mappings, as `key: old -> new`."""
    lines: list[str] = []
    for key in sorted({*old, *new}, key=str):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            lines.extend(differing_keys(before, after, f"{prefix}{key}."))
        elif before != after:
            lines.append(f"{prefix}{key}: {before} -> {after}")
    return lines


def in_short(texts: Sequence[str]) -> str:
    """The first few texts, joined into one."""
    return "; ".join([*texts[:_NUM_NAMED], *(["..."] if len(texts) > _NUM_NAMED else [])])


def _mapping(record: Mapping[str, Any], key: str, *, where: str) -> dict[str, Any]:
    if key not in record:
        raise _damage(where, f"lacks '{key}'")
    if not isinstance(record[key], dict):
        raise _damage(f"{where}:", f"'{key}' is {shortened(record[key])}, not keys and values")
    values: dict[str, Any] = record[key]
    return values


def _start_cases(record: Mapping[str, Any], *, where: str) -> CaseDivision | None:
    if _START_CASES not in record:
        return None
    try:
        return CaseDivision.parse(_mapping(record, _START_CASES, where=where), where=f"{where}: {_START_CASES}")
    except ConfigError as error:
        raise ConfigError(f"{error}; restore it, or start again with --overwrite") from None


def _damage(where: Path | str, what: str) -> ConfigError:
    return ConfigError(f"train: {where} {what}; start again with --overwrite")


def _stored(saved: SavedRun, now: dict[str, Any]) -> dict[str, Any]:
    """The values of the run's data set under the same keys; a value that was not stored counts as equal."""
    return {key: saved.dataset.get(key, value) for key, value in now.items()}


def _case_ids(cases: Cases, fold: Fold) -> dict[str, list[str]]:
    split = cases.split(fold)
    return {
        "training": [ref.case_id for ref in split.training],
        "validation": [ref.case_id for ref in split.validation],
    }


def _moved_cases(part: str, *, before: Sequence[str], now: Sequence[str]) -> list[str]:
    stored = {*map(str, before)}
    added, missing = sorted({*now} - stored), sorted(stored - {*now})
    lines = [f"{count_text(len(added), f'new {part} case')}: {listed(added, _NUM_NAMED)}"] if added else []
    if missing:
        lines.append(f"{count_text(len(missing), f'{part} case')} missing: {listed(missing, _NUM_NAMED)}")
    return lines
