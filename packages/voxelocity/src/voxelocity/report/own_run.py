"""A run of `voxelocity train` as facts, so that the same rules judge it. Reads only the run's folder."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from voxelocity.report.facts import read_run
from voxelocity.report.records import RunFacts, StepRecord
from voxelocity_observe.core.time_parts import GRAPH
from voxelocity_observe.diagnose.facts.program import OWN_FEED, LoaderFacts, NetworkFacts, SettingFacts
from voxelocity_observe.diagnose.facts.whole import PARTS, Ending, Facts, HostFacts, Pass, ProcessFacts, RankFacts, Step
from voxelocity_observe.diagnose.session import DiagnosisOutcome, diagnose_folder

# A month of training has millions of steps; the newest show what holds it back now.
_MAX_STEPS = 20_000
_HALF = ("bfloat16", "float16")


def diagnose(folder: str | Path, out: str | Path | None = None) -> DiagnosisOutcome:
    """What held a run back, or a program that `voxelocity diagnose` has watched; a notebook shows its page.

    Args:
        folder: of a run (the diagnosis is written into "diagnosis" below it) or of a diagnosis.
        out: another folder to write to.

    Raises:
        InputError: the folder is neither.
        OutputError: the page cannot be written.
    """
    return diagnose_folder(Path(folder), None if out is None else Path(out), facts_of_run=facts_of_run)


def facts_of_run(folder: str | Path) -> Facts:
    """Where the time of a run went, as its folder records it. The run may be unfinished or still running.

    Of several sessions, the last one with steps counts; its first stretch of them, about a second, is warm-up. A very
    long run counts with its newest 20,000 steps.

    Raises:
        InputError: the folder holds no run, or one of its files is damaged.
    """
    run = read_run(folder)
    steps = list(deque(_steps(run), maxlen=_MAX_STEPS))
    environment = dict(run.environment)
    num_cpus, words = environment.get("num_cpus"), _words(run.command)
    return Facts(
        command=words,
        main=ProcessFacts(
            pid=0,
            parent_pid=0,
            role="main",
            argv=words,
            versions={name: str(environment[name]) for name in ("torch", "monai", "numpy") if environment.get(name)},
        ),
        seconds=run.seconds,
        ended=Ending(reason="program", time_s=run.seconds) if run.status == "finished" else None,
        status=0 if run.status == "finished" else -(run.signal_number or 0) or None,
        steps=steps,
        ranks=tuple(RankFacts(rank=rank.rank, num_steps=rank.num_steps, parts=rank.parts) for rank in run.ranks),
        passes=_passes(run, since_s=steps[0].start_s if steps else 0.0),
        loaders=(_feed(run.plan),),
        settings=_settings(run),
        network=_network(run.plan),
        host=HostFacts(num_cpus=num_cpus, memory_limit_bytes=0) if isinstance(num_cpus, int) else None,
        not_measured=_not_measured(run),
        environment=environment,
    )


def _words(command: str) -> list[str]:
    """The words of a command; all of it as one where its quotes do not match, which only others than us write."""
    try:
        return shlex.split(command)
    except ValueError:
        return [command]


def _steps(run: RunFacts) -> Iterator[Step]:
    """Steps of each stretch, all equal, because a run records sums of about a second."""
    for number, record in enumerate(_last_session(run)):
        begin_s = record.time_s - record.seconds
        parts = _parts(record)
        count = max(1, record.num_steps)
        for index in range(count):
            yield Step(
                start_s=begin_s + record.seconds * index / count,
                seconds=record.seconds / count,
                parts={name: seconds / count for name, seconds in parts.items()},
                num_images=record.num_images // count,
                phase="watched" if number else "warm-up",
            )


def _last_session(run: RunFacts) -> Sequence[StepRecord]:
    """Stretches since the last start that was followed by at least two: between two sessions lies a start-up."""
    for start in reversed(run.starts):
        stretches = [record for record in run.steps if record.time_s - record.seconds >= start.time_s]
        if len(stretches) > 1:
            return stretches
    return run.steps


def _parts(record: StepRecord) -> dict[str, float]:
    """Seconds of a stretch by part; what the run names differently, or does not name, is "other"."""
    seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    seconds["wait"] = record.wait_s
    for name, part_s in record.parts.items():
        if name in ("network", GRAPH):
            # A step as one graph, and earlier runs: all of it in one figure, reported in `not_measured`.
            seconds["forward"] += part_s
        elif name in seconds and name not in ("wait", "other"):
            seconds[name] += part_s
    seconds["other"] = max(0.0, record.seconds - sum(seconds.values()))
    return seconds


def _passes(run: RunFacts, *, since_s: float) -> Sequence[Pass]:
    found = [
        Pass(kind="validation", start_s=validation.time_s - validation.seconds, seconds=validation.seconds)
        for validation in run.validations
    ]
    found += [
        Pass(kind="validation", start_s=stage.time_s - stage.seconds, seconds=stage.seconds)
        for stage in run.stages
        if stage.name == "validate"
    ]
    found += [
        Pass(kind="saving", start_s=checkpoint.time_s - checkpoint.seconds, seconds=checkpoint.seconds)
        for checkpoint in run.checkpoints
    ]
    return sorted(
        (interval for interval in found if interval.start_s >= since_s), key=lambda interval: interval.start_s
    )


def _feed(plan: Mapping[str, Any]) -> LoaderFacts:
    feed = _section(plan, "data", "feed")
    batch_size = _section(plan, "data").get("batch_size")
    return LoaderFacts(
        key=0,
        kind=OWN_FEED,
        dataset="PreparedCases",
        num_workers=int(feed.get("num_threads") or 0),
        batch_size=batch_size if isinstance(batch_size, int) else None,
        prefetch_factor=feed.get("num_batches_ahead"),
        is_for_training=True,
    )


def _settings(run: RunFacts) -> SettingFacts:
    compute = str(_section(run.plan, "precision").get("compute") or "")
    device = (run.device or "cpu").partition(":")[0]
    return SettingFacts(
        device=device,
        device_name=str(run.environment.get("gpu") or ""),
        has_cuda=bool(run.environment.get("gpu")) or device == "cuda",
        autocast=compute if compute in _HALF else "",
    )


def _network(plan: Mapping[str, Any]) -> NetworkFacts:
    shape = _section(plan, "data", "patch").get("shape_voxel") or ()
    return NetworkFacts(
        name=str(_section(plan, "network").get("name") or "network"),
        kernel_dimensions=len(shape),
    )


def _not_measured(run: RunFacts) -> Sequence[str]:
    missing = ["single steps: a run records sums over about a second, so late batches cannot be detected"]
    if any("network" in record.parts or GRAPH in record.parts for record in run.steps):
        missing.append("forward, backward and optimizer separately: all are shown as forward")
    return (*missing, "other programs on the machine: `voxelocity diagnose -- voxelocity train ...` also watches these")


def _section(plan: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """A section of the stored plan; empty where another version wrote no such section."""
    section: Any = plan
    for key in keys:
        section = section.get(key) if isinstance(section, Mapping) else None
    return section if isinstance(section, Mapping) else {}
