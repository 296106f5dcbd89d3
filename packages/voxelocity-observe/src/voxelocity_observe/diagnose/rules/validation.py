"""Rules on what happens between the steps: validation and saving."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from voxelocity_observe.core.quantities import count_text, duration_text
from voxelocity_observe.diagnose.accounting import passes_of, passes_s, watched_s
from voxelocity_observe.diagnose.facts import Facts, Pass
from voxelocity_observe.diagnose.rules.loader_model import is_own_run
from voxelocity_observe.diagnose.rules.rule import Found, rule
from voxelocity_observe.diagnose.rules.seen import (
    beside_workers_s,
    is_shown,
    num_cores,
    num_samples,
    on_gpu,
    stack_line,
    stacks_in,
)
from voxelocity_observe.diagnose.rules.words import changed_call, percent, shape_text

# Validation should cost at most a tenth of the time; `voxelocity train` gives it the same.
_TARGET_SHARE = 0.1
_LARGE_SHARE = 0.2
# Less often than this, you notice too late that a training goes wrong.
_MOST_SELDOM = 10
_OVERLAP = re.compile(r"\boverlap\s*=\s*(0?\.\d+)")
_ENOUGH_OVERLAP = 0.5
_WAIT_SHARE = 0.3
_METRIC_SHARE = 0.4
_MANY_FORWARDS = 8
_SAVING_TARGET_SHARE = 0.01


def _part_s(passes: Sequence[Pass], *parts: str) -> float:
    return sum(interval.parts.get(part, 0.0) for interval in passes for part in parts)


def _every(times_too_often: float) -> int:
    """The interval as a whole number, rounded up; a value that is whole except for rounding is kept."""
    return max(2, math.ceil(times_too_often - 1e-6))


@rule("VX401", "Validation is done too often or on too many scans", pool="validation")
def large_validation(facts: Facts) -> Found | None:
    """Validations take a large share of the watched time."""
    passes = passes_of(facts, "validation")
    seconds, of_s = passes_s(facts, "validation"), watched_s(facts)
    trained_s = of_s - seconds
    if not passes or not facts.counted or seconds < _LARGE_SHARE * of_s:
        return None
    # The interval at which validation takes its target share of the whole time.
    every = min(_MOST_SELDOM, _every(seconds * (1.0 - _TARGET_SHARE) / (_TARGET_SHARE * max(trained_s, 1e-9))))
    return Found(
        cause=f"{count_text(len(passes), 'validation')} took {duration_text(seconds)} of "
        f"{duration_text(of_s)} ({percent(seconds / of_s)}), {duration_text(seconds / len(passes))} each.",
        evidence=[
            f"{sum(interval.num_forwards for interval in passes)} calls of the network in validation"
            + (f", {passes[0].where}" if passes[0].where else ""),
            f"training between them: {duration_text(trained_s)}",
        ],
        saves_s=seconds * (1.0 - 1.0 / every),
        risk="changes results",
        change=f"voxelocity train ... --set train.validation_share={_TARGET_SHARE / 2}"
        if is_own_run(facts)
        else f"if (epoch + 1) % {every} == 0:\n    validate(...)  # the last epoch always",
        where=passes[0].where,
    )


@rule("VX402", "Validation records gradients that nobody uses", pool="validation")
def gradients_in_validation(facts: Facts) -> Found | None:
    """The network ran without learning, outside of `torch.no_grad()`."""
    passes = [interval for interval in passes_of(facts, "validation") if interval.has_gradients]
    if not passes:
        return None
    return Found(
        cause=f"In {count_text(len(passes), 'validation')} the network kept what a backward pass "
        "would need: memory for each layer's output, so no larger window batch fits.",
        evidence=[f"gradients recorded in validation{f' at {passes[0].where}' if passes[0].where else ''}"],
        # Saves no time, measured on a CPU: a forward pass takes as long either way (1.03, n = 9); memory is the gain.
        change="with torch.inference_mode():\n    validate(...)",
        where=passes[0].where,
        is_cause=False,
    )


@rule("VX403", "Validation runs the network on one window at a time", pool="validation")
def single_windows(facts: Facts) -> Found | None:
    """Many small forward passes on a GPU that takes several windows at once."""
    passes = [
        interval for interval in passes_of(facts, "validation") if interval.num_forwards > 0 and interval.batch_shapes
    ]
    if not passes or not on_gpu(facts):
        return None
    forwards = sum(interval.num_forwards for interval in passes)
    single = sum(count for interval in passes for shape, count in interval.batch_shapes if shape and shape[0] == 1)
    forward_s = _part_s(passes, "forward")
    if single < 0.5 * forwards or forwards < _MANY_FORWARDS * len(passes) or not is_shown(facts, forward_s):
        return None
    shape = passes[0].batch_shapes[0][0]
    return Found(
        cause=f"{single} of {forwards} calls of the network in validation had one window ({shape_text(shape)}); "
        f"together they took {duration_text(forward_s)}, and a single window keeps few GPUs busy.",
        evidence=[f"{shape_text(shape)}: {count} calls" for shape, count in passes[0].batch_shapes[:3]],
        change="sliding_window_inference(images, roi_size, sw_batch_size=8, predictor=network)",
        where=passes[0].where,
        is_cause=False,
    )


@rule("VX404", "Validation waits for its data", pool="validation", names_work=True)
def waiting_validation(facts: Facts) -> Found | None:
    """The network is idle in validation while scans are read."""
    passes = passes_of(facts, "validation")
    seconds, wait_s = passes_s(facts, "validation"), _part_s(passes, "wait")
    if not passes or wait_s < _WAIT_SHARE * seconds or not is_shown(facts, wait_s):
        return None
    loaders = [candidate for candidate in facts.loaders if not candidate.is_for_training]
    loader = loaders[0] if loaders else None
    workers = loader.num_workers if loader else 0
    count = workers or num_cores(facts)
    saves_s = wait_s / 2.0 if workers else max(0.0, seconds - beside_workers_s(facts, seconds - wait_s, wait_s, wait_s))
    return Found(
        cause=f"In {duration_text(seconds)} of validation, the network waited {duration_text(wait_s)} "
        f"({percent(wait_s / seconds)}) for scans.",
        evidence=[
            f"{loader.kind}(num_workers={workers}) {loader.place}" if loader else "no loader seen in validation",
            f"{count_text(len(passes), 'validation')}, the same scans each time",
        ],
        saves_s=saves_s,
        change=f"{loader.kind if loader else 'DataLoader'}(CacheDataset(files, transform), "
        f"num_workers={count}, persistent_workers=True)",
        where=(loader.place if loader else "") or passes[0].where,
    )


@rule("VX405", "Metrics take more of the validation than the network", pool="validation", names_work=True)
def slow_metrics(facts: Facts) -> Found | None:
    """Processing predictions takes longer than making them."""
    passes = passes_of(facts, "validation")
    seconds, other_s = passes_s(facts, "validation"), _part_s(passes, "other")
    if not passes or other_s < _METRIC_SHARE * seconds or other_s <= _part_s(passes, "forward"):
        return None
    if not is_shown(facts, other_s):
        return None
    stacks = [
        stack for stack in stacks_in(facts, ("validation",)) if stack.kind in ("other", "sync", "transform", "log")
    ]
    whole = num_samples(stacks_in(facts, ("validation",)))
    return Found(
        cause=f"In {duration_text(seconds)} of validation, {duration_text(other_s)} ({percent(other_s / seconds)}) is "
        f"neither data nor network but metrics, windows and the like; the network takes "
        f"{duration_text(_part_s(passes, 'forward'))}.",
        evidence=[stack_line(stack, whole) for stack in stacks[:3]] or ["no stacks were taken in validation"],
        saves_s=other_s / 2.0,
        change="# per class and case on the network's device, without one-hot copies; distances in the last "
        "validation only:\n"
        "dice = 2 * (prediction & truth).sum() / (prediction.sum() + truth.sum())",
        where=stacks[0].where if stacks else passes[0].where,
    )


@rule("VX406", "Windows overlap more than they need", pool="validation", names_work=True)
def overlapping_windows(facts: Facts) -> Found | None:
    """Neighboring windows share most of their voxels, so each voxel is computed many times."""
    passes = passes_of(facts, "validation")
    told = next((interval for interval in passes if interval.overlap > _ENOUGH_OVERLAP), None)
    lines = [stack for stack in stacks_in(facts, ("validation",)) if _overlap(stack.line) > _ENOUGH_OVERLAP]
    if not passes or (told is None and not lines):
        return None
    if told is not None:
        overlap, where, line = told.overlap, told.windows_where, told.windows_line.strip()
    else:
        overlap, where, line = _overlap(lines[0].line), lines[0].where, lines[0].line.strip()
    seconds = passes_s(facts, "validation")
    what = "Validation" if facts.counted else "Predicting"
    windows = sum(count * shape[0] for interval in facts.passes for shape, count in interval.batch_shapes if shape)
    keys = {loader.key for loader in facts.loaders if not loader.is_for_training}
    scans = sum(fetch.num_items for fetch in facts.fetches if fetch.key in keys)
    each = windows / scans if scans else 0.0
    left = _windows_left(each, overlap)
    # Another network of the validation may have taken inputs of other dimensions.
    if told is not None and told.batch_shapes and len(told.volume) == len(told.batch_shapes[0][0]) - 2 > 0:
        left = _windows_of(told, _ENOUGH_OVERLAP) / _windows_of(told, overlap)
    # Work on whole scans does not change.
    same_s = _part_s(passes, "wait", "copy")
    saves_s = (seconds - same_s) * (1.0 - left)
    if not is_shown(facts, saves_s):
        return None
    return Found(
        cause=f"{what} takes {duration_text(seconds)} of {duration_text(watched_s(facts))} "
        f"({percent(seconds / watched_s(facts))}), with windows that overlap by {percent(overlap)} along each axis; "
        f"an overlap of {percent(_ENOUGH_OVERLAP)} needs {percent(left)} of the windows.",
        evidence=[
            f"{where}: {line}" if where else "",
            f"{sum(interval.num_forwards for interval in passes)} calls of the network without learning",
            f"{each:.0f} windows a scan" if each else "",
        ],
        saves_s=saves_s,
        risk="changes results",
        change=_with_less_overlap(told, line, overlap)
        + ("  # 0.25 is MONAI's default" + ("; more in the last validation only" if facts.counted else "")),
        where=where,
    )


def _with_less_overlap(told: Pass | None, line: str, overlap: float) -> str:
    """The program's own call or line with enough overlap; in general form if neither gives one."""
    if told is not None and "overlap=" in told.windows_call:
        return changed_call(told.windows_call, told.windows_variable, overlap=str(_ENOUGH_OVERLAP))
    if _overlap(line):
        return _OVERLAP.sub(f"overlap={_ENOUGH_OVERLAP}", line)
    return f"overlap = {_ENOUGH_OVERLAP}  # steps of half a window, instead of {overlap:g}"


def _windows_of(one: Pass, overlap: float) -> int:
    """Number of windows in a volume if they overlap by this share along each axis."""
    lengths = one.batch_shapes[0][0][2:]
    steps = [max(1, int(length * (1.0 - overlap))) for length in lengths]
    axes = zip(one.volume, lengths, steps, strict=True)
    return math.prod(max(0, math.ceil((whole - length) / step)) + 1 for whole, length, step in axes)


def _overlap(line: str) -> float:
    """The overlap that a line of code gives to its windows; 0 if it gives none."""
    found = _OVERLAP.search(line)
    return float(found.group(1)) if found else 0.0


def _windows_left(each: float, overlap: float) -> float:
    """Share of a scan's windows that are left at the sufficient overlap, if the scan and its windows are cubes."""
    step, wanted = 1.0 - overlap, 1.0 - _ENOUGH_OVERLAP
    if each < 1.0:
        return float((step / wanted) ** 3)
    along = each ** (1.0 / 3.0)
    then = math.ceil((along - 1.0) * step / wanted - 1e-6) + 1.0
    return float(min(1.0, (then / along) ** 3))


@rule("VX411", "Checkpoints are written too often or take too long", pool="saving")
def frequent_saving(facts: Facts) -> Found | None:
    """Checkpoints are so frequent or so large that they show."""
    passes = passes_of(facts, "saving")
    seconds, of_s = passes_s(facts, "saving"), watched_s(facts)
    if not passes or not facts.counted or not is_shown(facts, seconds):
        return None
    every = _every(seconds / (_SAVING_TARGET_SHARE * of_s))
    saves, steps = count_text(len(passes), "save"), count_text(len(facts.counted), "step")
    return Found(
        cause=f"{saves} in {steps} took {duration_text(seconds)} of {duration_text(of_s)} "
        f"({percent(seconds / of_s)}), {duration_text(seconds / len(passes))} each.",
        evidence=[f"torch.save{f' at {passes[0].where}' if passes[0].where else ''}: {len(passes)} times"],
        saves_s=seconds * (1.0 - 1.0 / every),
        change="voxelocity train ... --set train.checkpoint_every_s=300"
        if is_own_run(facts)
        else f"if num_saves_due % {every} == 0:\n    torch.save(...)  # or in a thread, from copied tensors",
        where=passes[0].where,
    )
