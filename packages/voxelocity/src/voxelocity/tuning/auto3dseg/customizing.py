"""Searches the settings of a work folder's algorithms, writes them into their own files, and takes that back.

`customize` and `undo` do this; `BundleGen` is MONAI's class with the former in place of its own customization.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from monai.apps.auto3dseg import BundleGen as MonaiBundleGen
from monai.apps.auto3dseg.bundle_gen import default_algo_zip
from monai.utils.enums import AlgoKeys
from rich.console import Console

from voxelocity.core.requests.tune import CustomizeOptions, CustomizeRequest
from voxelocity.planning import Machine, survey
from voxelocity.tuning.auto3dseg.algorithms import (
    ALGORITHM_OBJECT,
    Algos,
    WorkAlgorithm,
    algorithms_in,
    alike,
    chosen_algorithms,
    configuration_digest,
    customized_in,
    holds_algorithms,
    largest_case,
    originals_of,
)
from voxelocity.tuning.auto3dseg.originals import TUNE_FOLDER
from voxelocity.tuning.auto3dseg.specs import ALGORITHMS, AlgorithmSpecs, parse_specs
from voxelocity.tuning.auto3dseg.steps import AlgorithmTask
from voxelocity.tuning.auto3dseg.templates import (
    DATA_ON,
    PARAMETERS,
    PATCHES,
    WINDOWS,
    OwnSettings,
    algorithm_knobs,
    named_rate,
    read_parameters,
    written_keys,
)
from voxelocity.tuning.costs import RunTime
from voxelocity.tuning.page import before_and_after, verdict, write_tuning_page
from voxelocity.tuning.result import MeasuredTuning, machine_text, trial_line
from voxelocity.tuning.space import Knob, Settings
from voxelocity.tuning.study import Search, Study, StudyResult, lock_folder
from voxelocity.tuning.task import TrialScale
from voxelocity.tuning.trial import TrialLimits, run_trial
from voxelocity.tuning.tune import trial_limits
from voxelocity_observe.core.clock import Clock, system_clock
from voxelocity_observe.core.console import PlainConsole
from voxelocity_observe.core.errors import ConfigError, InputError
from voxelocity_observe.core.host import default_cache_folder
from voxelocity_observe.core.request import context_of, documents
from voxelocity_observe.core.whole_file import write_whole
from voxelocity_observe.document.blocks import Block, Code, Text, fact_table

_SCALE = TrialScale(window_s=1.0, num_windows=3)
_WRITTEN = (TUNE_FOLDER, "*/configs", f"*/{ALGORITHM_OBJECT}")
# Main memory also holds what no trial has: the scans that a training caches, and the processes of its loaders.
_HOST_HEADROOM = 0.25
# Of few trials, most should search.
_FEW_TRIALS = 10
_NOTE = (
    "patches_per_step is what the template trains on at once, whichever of its keys sets that. It changes what is "
    "learned, as in Auto3DSeg's own customization; the number of epochs follows, so that a training sees as many "
    "patches as before, and so does the learning rate (scale_learning_rate: false keeps it). A range of one value, "
    "such as [2, 2], keeps the patches."
)


@dataclass(frozen=True, kw_only=True)
class CustomizeContext:
    """What a program hands to a customization besides the user's request."""

    scale: TrialScale = _SCALE
    """How much a trial measures."""
    console: Console | None = None
    """Where progress is shown; the terminal if not given."""
    clock: Clock = system_clock
    """Returns seconds."""


class CustomizingOptions(CustomizeOptions, total=False):
    """The keywords of `customize`: fields of `CustomizeRequest`, and those of `CustomizeContext`."""

    scale: TrialScale
    console: Console | None
    clock: Clock


@documents(CustomizeRequest, CustomizeContext, leave_out=("work_dir", "algos", "specs"))
def customize(
    work_dir: Path | str,
    algos: Algos = None,
    gpu_customization_specs: Mapping[str, Any] | None = None,
    **options: Unpack[CustomizingOptions],
) -> dict[str, MeasuredTuning]:
    """Searches the settings of algorithms that `BundleGen` made, and writes them into their own configuration files.

    Each trial is a process of its own with the algorithm's own training and validation step; running out of memory,
    crashing and hanging are outcomes. Folds of an algorithm that differ in nothing else share a search. What is
    replaced is kept (`undo`). A customization that was stopped continues with the same call.

    Args:
        work_dir: the folder that `BundleGen.generate` wrote into.
        algos: which algorithms; all that can be measured if None.
        gpu_customization_specs: by algorithm or for all ("universal"), as in MONAI; see `AlgorithmSpecs`.
        options: the fields of `CustomizeRequest`, and those of `CustomizeContext`.

    Returns:
        What each search came to, by the algorithm in whose folder it was measured.

    Raises:
        ConfigError: an algorithm, key or range of the specs is wrong.
        InputError: the folder holds no algorithms, or a template cannot be measured.
        OutputError: a folder cannot be written, or another process is tuning there.
    """
    context, asked = context_of(CustomizeContext, options)
    request = CustomizeRequest.of_call(asked, work_dir=work_dir, algos=algos, specs=gpu_customization_specs)
    return customize_folder(request, context)


def customize_folder(
    request: CustomizeRequest, context: CustomizeContext = CustomizeContext()
) -> dict[str, MeasuredTuning]:
    """What `customize` does, for a request."""
    work, shown = request.work_dir.absolute(), context.console or PlainConsole()
    specs = parse_specs(request.specs)
    if not holds_algorithms(work):
        raise InputError(f"tune: {work} holds no algorithms; give the folder that BundleGen.generate wrote into")
    with lock_folder(work, written=_WRITTEN, cure="tune a copy of the folder"):
        chosen = chosen_algorithms(work, request.algos, say=lambda text: shown.print(text, highlight=False))
        machine = survey(request.device, cache_folder=default_cache_folder())
        for algorithm in chosen:
            if specs[algorithm.name].validation_data_device == "gpu" and machine.device == "cpu":
                raise ConfigError(
                    f"tune: the specs of {algorithm.name} ask for validation_data_device gpu, and no GPU can be used; "
                    "write cpu, or leave it out"
                )
        for algorithm in chosen:
            # Trials begin from what the algorithm was, not from what an earlier customization made of it.
            if algorithm.originals.exist and algorithm.originals.are_current:
                algorithm.originals.put_back()
        ids = {algorithm.id for algorithm in chosen}
        groups = alike(algorithm for algorithm in algorithms_in(work) if algorithm.id in ids)
        return {
            members[0].id: _GroupSearch(
                members=members, specs=specs[members[0].name], machine=machine, request=request,
                context=replace(context, console=shown),
            ).run()
            for members in groups
        }  # fmt: skip


def undo(work_dir: Path | str, algos: Algos = None, *, console: Console | None = None) -> tuple[str, ...]:
    """Puts the files back that `customize` replaced, byte for byte; returns the algorithms. Runs none of their code.

    Raises:
        InputError: the folder holds no algorithms, or none that was customized.
        OutputError: a file cannot be moved, or another process is tuning there.
    """
    work, shown = Path(work_dir).absolute(), console or PlainConsole()
    if not holds_algorithms(work):
        raise InputError(f"tune: {work} holds no algorithms; give the folder that was customized")
    with lock_folder(work, written=_WRITTEN, cure="try again later"):
        kept = customized_in(work, algos)
        if not kept:
            raise InputError(f"tune: nothing in {work} was customized, so there is nothing to undo")
        for algorithm in kept:
            changed = originals_of(algorithm).put_back()
            if changed is not None:
                shown.print(
                    f"{algorithm.name} was changed after it was customized; its files are now in {changed}",
                    soft_wrap=True,
                )
    return tuple(algorithm.name for algorithm in kept)


class BundleGen(MonaiBundleGen):  # type: ignore[misc]  # MONAI has no types
    """MONAI's class; `generate(gpu_customization=True)` measures and writes by `customize`.

    Raises:
        InputError: the templates cannot be downloaded.
    """

    @functools.wraps(MonaiBundleGen.__init__)  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().__init__(*args, **kwargs)
        except ValueError as error:
            if not str(error).startswith("Download and extract of"):
                raise
            reason = str(error.__cause__ or error).partition("\n")[0]
            raise InputError(
                f"BundleGen: MONAI's templates could not be downloaded ({reason}); unpack {default_algo_zip} on a "
                "machine that can reach it, and give its folder algorithm_templates: "
                "BundleGen(..., templates_path_or_url=FOLDER)"
            ) from error

    def generate(
        self,
        output_folder: str = ".",
        num_fold: int = 5,
        gpu_customization: bool = False,
        gpu_customization_specs: Mapping[str, Any] | None = None,
        allow_skip: bool = True,
    ) -> None:
        """As MONAI's. All folds of an algorithm are customized by one search; unknown templates stay unchanged.

        Raises:
            InputError: a template needs a GPU, and there is none.
            VoxelocityError: as `customize`.
        """
        begin = len(self.history)
        try:
            super().generate(output_folder, num_fold, allow_skip=allow_skip)
        except ValueError as error:
            # Some templates take the smallest memory of all GPUs, of which there are none.
            if re.match(r"(min|max)\(\) .*\bempty\b", str(error)) is None:
                raise
            raise InputError(
                f"BundleGen: a template asks every GPU for its memory, and this machine has none ({error}); give "
                'algos="dints", whose template does not, or generate on a machine with a GPU'
            ) from error
        made = {entry[AlgoKeys.ID]: entry[AlgoKeys.ALGO] for entry in self.history[begin:]}
        names = {algo.name for algo in made.values()}
        if not gpu_customization or not names:
            return
        if others := sorted(names - {*ALGORITHMS}):
            warnings.warn(
                f"BundleGen: {', '.join(others)} stay unchanged: only {', '.join(ALGORITHMS)} can be measured",
                stacklevel=2,
            )
        customize(output_folder, sorted(names & {*ALGORITHMS}), gpu_customization_specs)
        # MONAI writes the objects of its history again: they must know what was written.
        for algorithm in algorithms_in(output_folder):
            if algorithm.id in made:
                made[algorithm.id].fill_records = algorithm.algo.fill_records


@dataclass(frozen=True, kw_only=True)
class _GroupSearch:
    """One search, for algorithms that differ in their fold alone; the first is measured."""

    members: Sequence[WorkAlgorithm]
    specs: AlgorithmSpecs
    machine: Machine
    request: CustomizeRequest
    context: CustomizeContext

    @property
    def first(self) -> WorkAlgorithm:
        return self.members[0]

    @property
    def folder(self) -> Path:
        request = self.request
        return (request.out or request.work_dir.absolute() / TUNE_FOLDER) / self.first.id

    def run(self) -> MeasuredTuning:
        """Searches, confirms, writes and shows."""
        first, on_device = self.first, self.machine.device == "cuda"
        console, scale = self.context.console or PlainConsole(), self.context.scale
        limits = trial_limits(self.machine, self.request.memory_limit_bytes)
        digest = configuration_digest(first.folder)
        parameters = read_parameters(first.folder, first.name)
        task = AlgorithmTask(
            name=first.name,
            folder=str(first.folder),
            device=f"cuda:{self.machine.device_index or 0}" if on_device else "cpu",
            case_shape=largest_case(first, parameters),
            window_s=scale.window_s,
            num_windows=scale.num_windows,
            validation_s=scale.validation_s,
        )
        own = self._own_settings(task, digest, TrialLimits(seconds=limits.seconds))
        if self.specs.scale_learning_rate:
            own = replace(own, learning_rate=named_rate(first.name, parameters))
        knobs = algorithm_knobs(self.specs, own, has_gpu=on_device)

        def command(settings: Settings, *, answer: Path, limits: TrialLimits) -> Sequence[str]:
            asked = replace(task, settings=settings, own=own, device_limit_bytes=limits.device_bytes)
            return _process(write_whole(answer.with_suffix(".task"), asked.to_json().encode()), answer)

        console.print(f"{first.id}: {', '.join(member.id for member in self.members)}", highlight=False)
        cost = RunTime(num_images=own.num_patches, num_validations=own.num_validations)
        study = Study(
            self.folder,
            self._search(knobs, limits, digest),
            command=command,
            cost=cost,
            overwrite=self.request.overwrite,
            on_trial=lambda record: console.print(trial_line(record, knobs, on_device=on_device), highlight=False),
            clock=self.context.clock,
        ).run()
        keys = _keys(first.name, own, study, has_gpu=on_device)
        for algorithm in self.members if keys else ():
            if algorithm.originals.exist:
                console.print(
                    f"{algorithm.id} was changed after it was customized: --undo will put these changed files back, "
                    "not those before",
                    highlight=False,
                    soft_wrap=True,
                )
            algorithm.write(keys)
        result = MeasuredTuning(
            folder=self.folder, goal="throughput", subject=first.id, where=machine_text(self.machine),
            owner="the algorithm", smaller="make its network or patch smaller", note=_NOTE, knobs=knobs, study=study,
            time=cost, memory_limit_bytes=self.request.memory_limit_bytes, on_device=on_device, values=keys,
            kept=first.originals.place.parent if keys else None,
        )  # fmt: skip
        write_tuning_page(result, use=self._use(keys))
        console.print(verdict(result, *before_and_after(result)), highlight=False)
        return result

    def _search(self, knobs: tuple[Knob, ...], limits: TrialLimits, digest: str) -> Search:
        confirmations = 1 if self.specs.num_trials < _FEW_TRIALS else 2
        return Search(
            knobs=knobs,
            limits=limits,
            num_trials=max(1, self.specs.num_trials - 2 * confirmations),
            num_confirmations=confirmations,
            headroom=Search.headroom if self.machine.device == "cuda" else _HOST_HEADROOM,
            time_budget_s=self.request.time_budget_s,
            seed=self.request.seed,
            about={
                "algorithm": self.first.name,
                "configuration": digest,
                "device": self.machine.device_name,
                "memory limit": self.request.memory_limit_bytes,
                "scale": vars(self.context.scale),
            },
        )

    def _own_settings(self, task: AlgorithmTask, digest: str, limits: TrialLimits) -> OwnSettings:
        """The algorithm's own settings, found once for a study: a template scales them by the memory that is free."""
        place, answer = self.folder / "own.json", self.folder / "own.answer"
        # A file that is missing, damaged or of another version costs one more trial.
        with suppress(OSError, ValueError, LookupError, TypeError):
            before = json.loads(place.read_bytes())
            if before["configuration"] == digest and not self.request.overwrite:
                return OwnSettings(**before["own"])
        process = _process(write_whole(self.folder / "own.task", task.to_json().encode()), answer)
        log = self.folder / "own.log"
        outcome = run_trial(process, answer=answer, log=log, limits=limits)
        if not outcome.is_finished:
            raise InputError(
                f"tune: {self.first.folder} cannot be measured: {outcome.kind.replace('_', ' ')}, {outcome.reason}\n"
                "Generate the folder again with BundleGen, or name only other algorithms in algos"
            )
        own = OwnSettings(**outcome.about["own"])
        write_whole(place, json.dumps({"configuration": digest, "own": asdict(own)}).encode())
        return own

    def _use(self, keys: Mapping[str, Any]) -> list[Block]:
        if not keys:
            return []
        return [
            fact_table(
                "Written",
                [
                    ("file", ", ".join(f"{member.id}/configs/{PARAMETERS}" for member in self.members)),
                    ("originals", str(self.first.originals.place.parent)),
                    ("to undo", f"voxelocity tune {shlex.quote(str(self.first.folder.parent))} --undo"),
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
    return [sys.executable, "-m", "voxelocity.tuning.auto3dseg.measure", str(task), str(answer)]
