"""Searches the settings of a work folder's algorithms, writes them into their own files, and takes that back."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from voxelocity.core.console import PlainConsole
from voxelocity.core.errors import ConfigError, InputError
from voxelocity.core.whole_file import write_whole
from voxelocity.interop.auto3dseg.algorithms import (
    Algos,
    WorkAlgorithm,
    algorithms_in,
    alike,
    chosen_algorithms,
    configuration_digest,
    holds_algorithms,
    largest_case,
)
from voxelocity.interop.auto3dseg.measure import AlgorithmTask
from voxelocity.interop.auto3dseg.originals import TUNE_FOLDER
from voxelocity.interop.auto3dseg.specs import AlgorithmSpecs, parse_specs
from voxelocity.interop.auto3dseg.templates import (
    DATA_ON,
    PARAMETERS,
    PATCHES,
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

_SCALE = TrialScale(window_s=1.0, num_windows=3)
# Of few trials, most should search.
_FEW_TRIALS = 10
_NOTE = (
    "patches_per_step is what the template trains on at once, whichever of its keys sets that. It changes what is "
    "learned, as in Auto3DSeg's own customization; the number of epochs follows, so that a training sees as many "
    "patches as before. A range of one value, such as [2, 2], keeps it."
)


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
        chosen = chosen_algorithms(work, algos, say=lambda text: shown.print(text, highlight=False))
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
        for members in alike(chosen):
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
        kept = [each for each in chosen_algorithms(work, algos, say=lambda text: None) if each.originals.exist]
        if not kept:
            raise InputError(f"tune: nothing in {work} was customized, so there is nothing to undo")
        for each in kept:
            changed = each.originals.put_back()
            if changed is not None:
                shown.print(f"{each.id} was changed since; those files are now in {changed}", soft_wrap=True)
    return tuple(each.id for each in kept)


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
        self._digest = configuration_digest(self._first.folder)
        device = "cpu" if machine.device == "cpu" else f"cuda:{machine.device_index or 0}"
        parameters = read_parameters(self._first.folder, self._first.name)
        self._task = AlgorithmTask(
            name=self._first.name,
            folder=str(self._first.folder),
            device=device,
            case_shape=largest_case(self._first, parameters),
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
