"""Searches the settings of a work folder's algorithms, writes them into their own files, and takes that back."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from monai.apps.auto3dseg import import_bundle_algo_history
from monai.auto3dseg import algo_to_json
from monai.bundle import ConfigParser
from monai.utils.enums import AlgoKeys
from rich.console import Console

from voxelocity.core.console import PlainConsole
from voxelocity.core.errors import ConfigError, InputError
from voxelocity.core.plain import parse_yaml
from voxelocity.core.whole_file import write_whole
from voxelocity.interop.auto3dseg.measure import AlgorithmTask
from voxelocity.interop.auto3dseg.originals import TUNE_FOLDER, Originals, write_error
from voxelocity.interop.auto3dseg.specs import ALGORITHMS, AlgorithmSpecs, check_name, parse_specs
from voxelocity.interop.auto3dseg.templates import (
    DATA_ON,
    PARAMETERS,
    PATCHES,
    SEGMENTERS,
    WINDOWS,
    OwnSettings,
    algorithm_knobs,
    read_parameters,
    written_keys,
)
from voxelocity.observe import Clock, default_cache_folder, system_clock
from voxelocity.planning import DeviceChoice, Machine, survey
from voxelocity.report.document import Block, Code, Text, fact_table
from voxelocity.tuning.costs import RunTime
from voxelocity.tuning.page import sides, verdict, write_tuning_page
from voxelocity.tuning.result import MeasuredTuning, machine_text, trial_line
from voxelocity.tuning.space import Settings
from voxelocity.tuning.study import Search, Study, StudyResult, locked
from voxelocity.tuning.trial import TrialLimits, run_trial
from voxelocity.tuning.tune import TrialScale, trial_environ, trial_limits

Algos = Mapping[str, Any] | Sequence[str] | str | None
"""As BundleGen takes them: names of algorithms, or a mapping with these keys; all for None."""

_OBJECT = "algo_object.json"
_STATS = "datastats.yaml"
_SCALE = TrialScale(window_s=1.0, num_windows=3)
# Of few trials, most should search.
_FEW_TRIALS = 10
_NOTE = (
    "patches_per_step is what the template trains on at once, whichever of its keys sets that. It changes what is "
    "learned, as in Auto3DSeg's own customization; the number of epochs follows, so that a training sees as many "
    "patches as before. A range of one value, such as [2, 2], keeps it."
)


@dataclass(frozen=True, kw_only=True)
class WorkAlgorithm:
    """An algorithm in a work folder: MONAI's object and the name of its template."""

    id: str
    name: str
    folder: Path
    algo: Any

    @property
    def originals(self) -> Originals:
        return Originals(self.folder, (Path("configs", PARAMETERS), Path(_OBJECT)))

    def write(self, keys: Mapping[str, Any]) -> None:
        """Writes the keys of its parameters through MONAI, and keeps what they replace.

        Raises:
            OutputError: a file cannot be written; all are as before then.
        """
        originals, file = self.originals, self.folder / "configs" / PARAMETERS
        originals.keep()
        try:
            parser = ConfigParser(globals=False)
            parser.read_config(str(file))
            for key, value in keys.items():
                parser[key] = value
            ConfigParser.export_config_file(
                parser.get(), str(file), fmt="yaml", default_flow_style=None, sort_keys=False
            )
            # MONAI fills the file with these again when it makes variants of the algorithm.
            self.algo.fill_records.setdefault(PARAMETERS, {}).update(keys)
            algo_to_json(self.algo, template_path=self.algo.template_path)
            originals.seal()
        except OSError as error:
            originals.put_back()
            raise write_error(self.folder, error) from None


def customize(
    work_dir: Path | str,
    algos: Algos = None,
    gpu_customization_specs: Mapping[str, Any] | None = None,
    *,
    memory_limit_bytes: int = 0,
    time_budget_s: float = 0.0,
    device: DeviceChoice = "auto",
    out: Path | str | None = None,
    seed: int = 0,
    overwrite: bool = False,
    scale: TrialScale = _SCALE,
    console: Console | None = None,
    clock: Clock = system_clock,
) -> dict[str, MeasuredTuning]:
    """Searches the settings of algorithms that `BundleGen` made, and writes them into their own configuration files.

    Each trial is a process of its own with the algorithm's own training and validation step; running out of memory,
    crashing and hanging are outcomes. Folds of an algorithm that differ in nothing else share a search. What is
    replaced is kept (`undo`). A customization that was stopped continues with the same call.

    Args:
        work_dir: the folder that `BundleGen.generate` wrote into.
        algos: which algorithms; all that can be measured if None.
        gpu_customization_specs: by algorithm or for all ("universal"), as in MONAI; see `AlgorithmSpecs`.
        memory_limit_bytes: of the GPU or, without one, of main memory; what is free if 0.
        time_budget_s: seconds for each search; 0 sets no limit.
        device: where the algorithms will train.
        out: folder of the trials and pages; `work_dir`/tune if not given.
        seed: of the search.
        overwrite: begin again, even if there are trials.
        scale: how much a trial measures.
        console: where progress is shown; the terminal if not given.
        clock: returns seconds.

    Returns:
        What each search came to, by the algorithm in whose folder it was measured.

    Raises:
        ConfigError: an algorithm, key or range of the specs is wrong.
        InputError: the folder holds no algorithms, or a template cannot be measured.
        OutputError: a folder cannot be written, or another process is tuning there.
    """
    work, shown = Path(work_dir).absolute(), console or PlainConsole()
    specs = parse_specs(gpu_customization_specs)
    if memory_limit_bytes < 0:
        raise ConfigError(f"tune: a memory limit of {memory_limit_bytes} bytes leaves nothing; give 8GB, or 0 for none")
    if not holds_algorithms(work):
        raise InputError(f"tune: {work} holds no algorithms; give the folder that BundleGen.generate wrote into")
    with locked(work, cure="tune a copy of the folder"):
        chosen = _chosen(work, algos, say=lambda text: shown.print(text, highlight=False))
        for each in chosen:
            if each.originals.exist:
                # Trials begin from what the algorithm was, not from what an earlier customization made of it.
                each.originals.put_back() if each.originals.are_current else each.originals.forget()
        chosen = [each for each in algorithms_in(work) if each.id in {one.id for one in chosen}]
        machine = survey(device, cache_folder=default_cache_folder())
        for name in {each.name for each in chosen}:
            if specs[name].validation_data_device == "gpu" and machine.device == "cpu":
                raise ConfigError(
                    f"tune: specs of {name} put validation_data_device on the gpu, and torch sees none; "
                    "write cpu, or leave it out"
                )
        limits = trial_limits(machine, memory_limit_bytes, time_budget_s)
        found = {}
        for members in _alike(chosen):
            search = _GroupSearch(
                members,
                specs[members[0].name],
                machine,
                limits,
                (Path(out) if out else work / TUNE_FOLDER),
                scale,
                seed,
            )
            found[members[0].id] = search.run(
                memory_limit_bytes, time_budget_s, overwrite=overwrite, console=shown, clock=clock
            )
        return found


def undo(work_dir: Path | str, algos: Algos = None, *, console: Console | None = None) -> tuple[str, ...]:
    """Puts the files back that `customize` replaced, byte for byte; returns the algorithms.

    Raises:
        InputError: the folder holds no algorithms, or none that was customized.
        OutputError: a file cannot be moved, or another process is tuning there.
    """
    work, shown = Path(work_dir).absolute(), console or PlainConsole()
    if not holds_algorithms(work):
        raise InputError(f"tune: {work} holds no algorithms; give the folder that was customized")
    with locked(work, cure="try again later"):
        kept = [each for each in _chosen(work, algos, say=lambda text: None) if each.originals.exist]
        if not kept:
            raise InputError(f"tune: nothing in {work} was customized, so there is nothing to undo")
        for each in kept:
            changed = each.originals.put_back()
            if changed is not None:
                shown.print(f"{each.id} was changed since; those files are now in {changed}", soft_wrap=True)
    return tuple(each.id for each in kept)


def holds_algorithms(folder: Path) -> bool:
    """Whether this is a work folder of Auto3DSeg. Imports nothing from it."""
    return folder.is_dir() and any(folder.glob(f"*/{_OBJECT}"))


def algorithms_in(work_dir: Path | str) -> list[WorkAlgorithm]:
    """The algorithms of a work folder, by MONAI. Imports their `algo.py`, as MONAI does.

    Raises:
        InputError: one cannot be loaded.
    """
    try:
        history = import_bundle_algo_history(str(work_dir), only_trained=False)
    except (ImportError, ValueError, RuntimeError) as error:
        cause = error.__cause__ or error
        raise InputError(
            f"tune: the algorithms in {work_dir} cannot be loaded ({cause}); install what their scripts import "
            "(MONAI's templates need fire), or generate the folder again with BundleGen"
        ) from error
    return [
        WorkAlgorithm(id=entry[AlgoKeys.ID], name=algo.name, folder=Path(algo.get_output_path()), algo=algo)
        for entry in history
        for algo in [entry[AlgoKeys.ALGO]]
    ]


def _chosen(work: Path, algos: Algos, *, say: Callable[[str], None]) -> list[WorkAlgorithm]:
    """The algorithms that are asked for, by the name of their template or their folder."""
    there = algorithms_in(work)
    if algos is None:
        for each in there:
            if each.name not in ALGORITHMS:
                say(f"{each.id} stays as it is: only {', '.join(ALGORITHMS)} can be measured")
        return [each for each in there if each.name in ALGORITHMS]
    names = [algos] if isinstance(algos, str) else [*algos]
    known = sorted({each.name for each in there} | {each.id for each in there})
    for name in names:
        check_name(str(name), known, what=f"of {work}, algos name")
    chosen = [each for each in there if each.name in names or each.id in names]
    for each in chosen:
        check_name(each.name, ALGORITHMS, what="algos name an algorithm that cannot be measured,")
    return chosen


def _alike(chosen: Iterable[WorkAlgorithm]) -> list[list[WorkAlgorithm]]:
    """The algorithms by what a trial would measure: their folds belong together."""
    groups: dict[tuple[str, str], list[WorkAlgorithm]] = {}
    for each in chosen:
        read_parameters(each.folder, each.name)
        groups.setdefault((each.name, _digest(each.folder)), []).append(each)
    return [*groups.values()]


def _digest(folder: Path) -> str:
    """Of all configuration files of an algorithm, apart from where it lies and which fold it holds out."""
    found: dict[str, Any] = {}
    for path in sorted((folder / "configs").glob("*.yaml")):
        values = parse_yaml(path.read_text(encoding="utf-8"))
        found[path.name] = {key: value for key, value in values.items() if key not in ("bundle_root", "fold")}
    return hashlib.sha256(json.dumps(found, sort_keys=True, default=str).encode()).hexdigest()


class _GroupSearch:
    """One search, for algorithms that differ in their fold alone; the first is measured."""

    def __init__(
        self,
        members: Sequence[WorkAlgorithm],
        specs: AlgorithmSpecs,
        machine: Machine,
        limits: TrialLimits,
        out: Path,
        scale: TrialScale,
        seed: int,
    ) -> None:
        self._members, self._first, self._specs, self._machine = members, members[0], specs, machine
        self._limits, self._scale, self._seed = limits, scale, seed
        self._folder = out / self._first.id
        self._digest = _digest(self._first.folder)
        device = "cpu" if machine.device == "cpu" else f"cuda:{machine.device_index or 0}"
        parameters = read_parameters(self._first.folder, self._first.name)
        self._task = AlgorithmTask(
            name=self._first.name,
            folder=str(self._first.folder),
            device=device,
            case_shape=_largest_case(self._first, parameters),
            window_s=scale.window_s,
            num_windows=scale.num_windows,
            validation_s=scale.validation_s,
        )

    def run(
        self, memory_limit_bytes: int, time_budget_s: float, *, overwrite: bool, console: Console, clock: Clock
    ) -> MeasuredTuning:
        """Searches, confirms, writes and shows."""
        own = self._own_settings(overwrite=overwrite)
        on_device = self._machine.device == "cuda"
        knobs = algorithm_knobs(self._specs, own, has_gpu=on_device)
        console.print(f"{self._first.id}: {', '.join(each.id for each in self._members)}", highlight=False)
        confirmations = 1 if self._specs.num_trials < _FEW_TRIALS else 2
        search = Search(
            knobs=knobs,
            limits=self._limits,
            num_trials=max(1, self._specs.num_trials - 2 * confirmations),
            num_confirmations=confirmations,
            time_budget_s=time_budget_s,
            seed=self._seed,
            about={
                "algorithm": self._first.name,
                "configuration": self._digest,
                "device": self._machine.device_name,
                "memory limit": memory_limit_bytes,
                "scale": vars(self._scale),
            },
        )
        cost = RunTime(num_images=own.num_patches, num_validations=own.num_validations)
        study = Study(
            self._folder,
            search,
            command=lambda settings, *, answer, limits: self._command(settings, own, answer, limits),
            cost=cost,
            environ=trial_environ(),
            overwrite=overwrite,
            on_trial=lambda record: console.print(trial_line(record, knobs, on_device=on_device), highlight=False),
            clock=clock,
        ).run()
        keys = _keys(self._first.name, own, study, has_gpu=on_device)
        for each in self._members if keys else ():
            each.write(keys)
        result = MeasuredTuning(
            folder=self._folder, goal="throughput", subject=self._first.id, where=machine_text(self._machine),
            owner="the algorithm", smaller="make its network or patch smaller", note=_NOTE, knobs=knobs, study=study,
            time=cost, memory_limit_bytes=memory_limit_bytes, on_device=on_device, values=keys,
            kept=self._first.originals.place.parent if keys else None,
        )  # fmt: skip
        write_tuning_page(result, use=self._use(keys))
        console.print(verdict(result, *sides(result)), highlight=False)
        return result

    def _own_settings(self, *, overwrite: bool) -> OwnSettings:
        """The algorithm's own settings, found once for a study: a template scales them by the memory that is free."""
        place = self._folder / "own.json"
        if not overwrite and place.exists():
            before = json.loads(place.read_bytes())
            if before["configuration"] == self._digest:
                return OwnSettings(**before["own"])
        task = write_whole(self._folder / "own.task", self._task.to_json().encode())
        answer = self._folder / "own.answer"
        outcome = run_trial(
            _process(task, answer),
            answer=answer,
            log=self._folder / "own.log",
            limits=TrialLimits(seconds=self._limits.seconds),
            environ=trial_environ(),
        )
        if not outcome.is_finished:
            raise InputError(
                f"tune: {self._first.folder} cannot be measured: {outcome.kind.replace('_', ' ')}, {outcome.reason}\n"
                "Generate the folder again with BundleGen, or leave the algorithm out by algos"
            )
        own = OwnSettings(**outcome.about["own"])
        write_whole(place, json.dumps({"configuration": self._digest, "own": asdict(own)}).encode())
        return own

    def _command(self, settings: Settings, own: OwnSettings, answer: Path, limits: TrialLimits) -> Sequence[str]:
        task = replace(self._task, settings=settings, own=own, device_limit_bytes=limits.device_bytes)
        return _process(write_whole(answer.with_suffix(".task"), task.to_json().encode()), answer)

    def _use(self, keys: Mapping[str, Any]) -> list[Block]:
        if not keys:
            return []
        return [
            fact_table(
                "Written",
                [
                    ("into", ", ".join(f"{each.id}/configs/{PARAMETERS}" for each in self._members)),
                    ("what was there before", str(self._first.originals.place.parent)),
                    ("to put it back", f"voxelocity tune {self._first.folder.parent} --undo"),
                ],
            ),
            Text(text="The keys:"),
            Code(text="\n".join(f"{key}: {json.dumps(value)}" for key, value in keys.items())),
        ]


def _keys(name: str, own: OwnSettings, study: StudyResult, *, has_gpu: bool) -> dict[str, Any]:
    """What is written for the winner; nothing if it is what the algorithm would do anyway, or if there is none."""
    by_itself = {PATCHES: own.patches, WINDOWS: own.windows, DATA_ON: own.data_on}
    if study.winner is None or dict(study.winner) == by_itself:
        return {}
    return written_keys(name, own, study.winner, has_gpu=has_gpu)


def _process(task: Path, answer: Path) -> Sequence[str]:
    return [sys.executable, "-m", "voxelocity.interop.auto3dseg.measure", str(task), str(answer)]


def _largest_case(one: WorkAlgorithm, parameters: Mapping[str, Any]) -> tuple[int, ...]:
    """Voxels of the largest case after the algorithm's own preparation, at least a patch.

    Raises:
        InputError: the statistics of the data are not where the algorithm says.
    """
    named = [Path(str(one.algo.data_stats_files)), one.folder.parent / _STATS, one.folder.parent.parent / _STATS]
    path = next((each for each in named if each.is_file()), None)
    if path is None:
        raise InputError(
            f"tune: the statistics of the data of {one.id} are not at {named[0]}, nor in its work folder; run MONAI's "
            f"DataAnalyzer again, or copy its {_STATS} there"
        )
    inner = parameters["training"] if one.name == "dints" else parameters
    try:
        stats = parse_yaml(path.read_text(encoding="utf-8"))["stats_summary"]["image_stats"]
        if one.name in SEGMENTERS and not inner.get("resample"):
            shape = [math.ceil(size) for size in stats["shape"]["max"]]
        else:
            spacing = inner["resample_resolution"]
            shape = [math.ceil(mm / abs(step)) for mm, step in zip(stats["sizemm"]["max"], spacing, strict=True)]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"tune: {path} lacks what {one.id} is measured with ({error!r}); run MONAI's DataAnalyzer again"
        ) from None
    return tuple(max(size, patch) for size, patch in zip(shape, inner["roi_size"], strict=True))
