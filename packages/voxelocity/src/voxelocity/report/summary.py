"""What the facts of a run amount to: the verdict, scores by class, and where the time went. Draws nothing."""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from voxelocity.core.records import CaseScore
from voxelocity.report.columns import classes_of, mean_over_classes
from voxelocity.report.records import RankRecord, RunFacts, StepRecord
from voxelocity_observe.core.command import signal_name
from voxelocity_observe.core.quantities import count_text, dice_text, duration_text, share_text
from voxelocity_observe.core.time_parts import OTHER, TimeShare, part_label


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """How fast training went; None where no step was done."""

    images_per_s: float | None
    wait_share: float | None
    seconds_per_epoch: float | None


_SHOWN_SHARE = 0.0005
# Of the forward passes of two ranks; less may be chance.
_NOTABLE_IMBALANCE = 0.15
_STAGE_NAMES = {
    "start": "start-up",
    "plan": "planning",
    "cache": "filling the cache",
    "network": "building the network",
    "validate": "final validation",
}
_STAGES_AFTER_TRAINING = ("validate", "predict", "report")


def verdict(run: RunFacts) -> str:
    """One plain sentence: how good, on what, after how long."""
    if run.status == "finished":
        waited = throughput(run).wait_share
        waiting = "" if waited is None else f"; {share_text(waited)} of the training time was spent waiting for data"
        took = f"{'. It ended' if run.unlearned else ''} after {duration_text(run.seconds)}"
        return f"{score_text(run)}{took}{waiting}."
    begin = (
        "Unfinished" if run.signal_number is None or run.status == "unfinished" else f"Interrupted by {_signal(run)}"
    )
    if run.step == 0:
        return f"{begin} after {duration_text(run.seconds)}, before the first training step."
    done = f"{begin} at step {run.step:,} after {duration_text(run.seconds)}"
    best = run.best_validation
    if best is None:
        return f"{done}, before the first validation."
    return f"{done}; best validation so far: mean foreground Dice {dice_text(best.mean_dice)} at step {best.step:,}."


def score_text(run: RunFacts) -> str:
    """The headline of a finished run: its mean Dice with the cases behind it, or why it has none."""
    dice = mean_dice(run)
    if run.unlearned:
        return f"No score, because this training is too short: {run.unlearned}"
    if dice is None and run.scores:
        return f"No score: none of {count_text(len(run.scores), 'case')} has a class in truth or prediction"
    if dice is None:
        return f"Trained for {count_text(run.step, 'step')} without a final validation"
    return f"Mean foreground Dice {dice_text(dice)} on {judged_text(run)}"


def judged_text(run: RunFacts) -> str:
    """The cases behind the scores: "42 held-out cases", "1 of 42 held-out cases", "3 cases trained on"."""
    count, planned = len(run.scores) or run.dataset.num_validation, run.dataset.num_validation
    part = f"{count:,} of " if count < planned else ""
    noun = "held-out case" if run.dataset.held_out else "case"
    exposed = run.dataset.exposed
    num_marked = sum(score.case_id in exposed for score in run.scores) if run.scores else len(exposed)
    marked = f", {num_marked} of them marked" if num_marked else ""
    return f"{part}{count_text(max(count, planned), noun)}{'' if run.dataset.held_out else ' trained on'}{marked}"


def exposed_text(exposed: Mapping[str, str]) -> str:
    """What is said of marked scores: those of cases that the model which a run started from may have seen, with why."""
    reasons = "; ".join(dict.fromkeys(exposed.values()))
    return (
        "Marked with *: the model that the run started from may have learned from "
        f"{count_text(len(exposed), 'held-out case')} ({reasons}). If so, their scores, and the means over them, are "
        "too high."
    )


def mean_dice(run: RunFacts) -> float | None:
    """Mean foreground Dice of the final validation; None before it, and for a training too short to be scored."""
    if run.unlearned:
        return None
    if run.scores:
        return mean_over_classes(run.scores, "dice")
    return run.finish.mean_dice if run.finish and math.isfinite(run.finish.mean_dice) else None


def without_surface_text(scores: Sequence[CaseScore]) -> str:
    """What the mean surface distance says nothing about: classes of cases in truth or prediction alone; "" if none."""
    num_left_out = sum(of_class.num_without_surface for of_class in classes_of(scores))
    if not num_left_out:
        return ""
    num_measured = sum(value is not None for score in scores for value in score.hd95_mm.values())
    return (
        f"{num_left_out} of {count_text(num_measured + num_left_out, 'structure')} left out because they are only in "
        "the truth or only in the prediction"
    )


def absent_text(scores: Sequence[CaseScore]) -> str:
    """How many classes are in no case and so in no mean; "" where each is in one."""
    classes = classes_of(scores)
    num_absent = sum(of_class.num_absent == len(scores) for of_class in classes)
    return (
        f"{num_absent} of {count_text(len(classes), 'class', 'classes')} in no case, counted in no mean"
        if num_absent
        else ""
    )


def throughput(run: RunFacts) -> Throughput:
    """Images a second, the share of the training time spent waiting, and the time per pass over the cases."""
    seconds = sum(record.seconds for record in run.steps)
    if seconds <= 0.0:
        return Throughput(images_per_s=None, wait_share=None, seconds_per_epoch=None)
    images_per_s = sum(record.num_images for record in run.steps) / seconds
    wait_share = sum(record.wait_s for record in run.steps) / seconds
    return Throughput(
        images_per_s=run.finish.images_per_s if run.finish else images_per_s,
        wait_share=run.finish.wait_share if run.finish else wait_share,
        seconds_per_epoch=_seconds_per_epoch(run.steps),
    )


def stage_shares(run: RunFacts) -> tuple[TimeShare, ...]:
    """Wall time by stage, in the order of the run; the remainder is named "other" where it shows.

    The stage "train" is split into its training steps, validations on the way and checkpoints.
    """
    before, after = dict[str, float](), dict[str, float]()
    for stage in run.stages:
        if stage.name != "train":
            seconds = after if stage.name in _STAGES_AFTER_TRAINING else before
            name = _STAGE_NAMES.get(stage.name, stage.name)
            seconds[name] = seconds.get(name, 0.0) + stage.seconds
    training = {
        "training steps": sum(record.seconds for record in run.steps),
        "validation on the way": sum(record.seconds for record in run.validations),
        "checkpoints": sum(record.seconds for record in run.checkpoints),
        "repeated after an interruption": run.lost_s,
    }
    seconds = {**before, **training, **after}
    return _shares(seconds, run.seconds)


def rank_words(ranks: Sequence[RankRecord], *, mode: str = "") -> str:
    """Whether the ranks need equally long, and what to do if not.

    Args:
        ranks: of a training.
        mode: how its network was distributed.
    """
    if mode == "pipeline":
        return (
            "Each rank is a stage of a pipeline. It waits for the others at the beginning and the end of each batch; "
            "more microbatches shorten that (parallel.num_microbatches, data.batch_size)."
        )
    seconds = {record.rank: record.parts.get("forward", 0.0) for record in ranks}
    slowest, fastest = max(seconds, key=seconds.__getitem__), min(seconds, key=seconds.__getitem__)
    if seconds[slowest] <= (1.0 + _NOTABLE_IMBALANCE) * seconds[fastest]:
        return (
            "The ranks take about equally long. The time of the backward pass includes waiting for the gradients of "
            "the other ranks."
        )
    times = seconds[slowest] / max(seconds[fastest], 1e-9)
    return (
        f"Rank {slowest} needs {times:.1f} times as long for its forward passes as rank {fastest}, and the others wait "
        "for it there and in the backward pass. Stop other programs on its device, or give it fewer patches: --set "
        "parallel.balance=measured."
    )


def part_shares(run: RunFacts) -> tuple[TimeShare, ...]:
    """The time of the training steps by activity, the remainder named "other"; empty where it was not measured."""
    measured = [record for record in run.steps if record.parts]
    seconds: dict[str, float] = {}
    for record in measured:
        # Runs of an earlier version keep the waiting apart from the other parts.
        for part, part_s in {"wait": record.wait_s, **record.parts}.items():
            name = part_label(part)
            seconds[name] = seconds.get(name, 0.0) + part_s
    whole_s = sum(record.seconds for record in measured)
    return _shares(seconds, whole_s) if whole_s > 0.0 else ()


def _seconds_per_epoch(steps: Sequence[StepRecord]) -> float | None:
    """Between the first and the last change of epoch: the first and the last epoch may be recorded only in part."""
    changes, trained_s = [(steps[0].epoch, 0.0)], 0.0
    for record in steps:
        trained_s += record.seconds
        if record.epoch != changes[-1][0]:
            changes.append((record.epoch, trained_s))
    begin, end = changes[1 if len(changes) > 2 else 0], changes[-1]
    return (end[1] - begin[1]) / (end[0] - begin[0]) if end[0] > begin[0] else None


def _signal(run: RunFacts) -> str:
    if run.signal_number == signal.SIGINT:
        return "Ctrl-C"
    return signal_name(run.signal_number or 0)


def _shares(seconds: dict[str, float], whole_s: float) -> tuple[TimeShare, ...]:
    named_s = sum(seconds.values())
    # Clocks of nested measurements may disagree by a little; the bar then stands for what was named.
    whole_s = max(whole_s, named_s)
    if whole_s <= 0.0:
        return ()
    parts = {name: part_s for name, part_s in seconds.items() if part_s > 0.0}
    if whole_s - named_s >= _SHOWN_SHARE * whole_s:
        parts[OTHER] = whole_s - named_s
    return tuple(TimeShare(name=name, seconds=part_s, share=part_s / whole_s) for name, part_s in parts.items())
