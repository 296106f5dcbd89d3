"""The words, figures and colors that screen, page and comparison share."""

from __future__ import annotations

import itertools
import shlex
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from voxelocity_observe.core.quantities import NOT_AVAILABLE, count_text, rate_text
from voxelocity_observe.core.time_parts import TimeShare, part_label
from voxelocity_observe.diagnose.accounting import FEW_STEPS, counted_images, step_s
from voxelocity_observe.diagnose.facts import Facts
from voxelocity_observe.diagnose.result import Diagnosis, Finding

NOT_WRITTEN = "Not written because the program was being ended"
"""The heading above `refused_texts`."""

PHASES = {
    "warm-up": "not counted: warm-up",
    "watched": "counted",
    "profiled": "slowed down by the profiler",
    "resident": "on batches in memory",
    "unchanged": "unchanged, between these",
    "refilled": "not counted: on batches made ahead",
}
UNITS = {"step": "steps", "batch": "batches", "item": "items", "sample": "samples"}
EXPERIMENTS = {
    "resident batch": "The step, on batches in memory",
    "loader": "The loader, without the step",
    "items": "The data set, in one thread",
    "collate": "Putting a batch together",
    "item, first use": "An item, made for the first time",
    "item, used again": "The same item, made again",
    "network, one sample": "The network alone, on one sample",
    "network, a batch": "The network alone, on a batch",
    "network, float32": "The network alone, in float32",
    "network, 16 bits": "The network alone, in 16 bits",
    "storage": "Reading the files from storage",
    "storage, page cache": "Reading the files from memory",
    "copy": "Copying a batch to the device",
}

# A gain below this reads better as time saved than as a factor.
_LEAST_FACTOR = 1.095
_MOST_FACTOR = 100.0


def refused_texts(facts: Facts) -> list[str]:
    """Files that the program did not get to write, each with the line that asked for it."""
    return [f"{write.path}, at {write.where}" if write.where else write.path for write in facts.refused_writes]


def own_steps_text(facts: Facts) -> str:
    """How many steps the training keeps, if experiments made more; "" where they did not."""
    own = facts.num_own_steps
    undone = len(facts.steps) - own
    if not undone:
        return ""
    return f"The training itself made {count_text(own, 'step')}; {undone:,} later ones were experiments and are undone."


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast the watched program was.

    Attributes:
        num_steps: counted.
        watched_s: all watched time, validation and saving included.
        steps_per_s, images_per_s: of all watched time; None where no step was counted, or images are unknown.
        step_s: median of the counted steps.
    """

    num_steps: int
    watched_s: float
    steps_per_s: float | None
    images_per_s: float | None
    step_s: float | None


def pace(diagnosis: Diagnosis) -> Pace:
    """The pace over all that was watched."""
    num_steps, num_images = len(diagnosis.facts.counted), counted_images(diagnosis.facts)
    watched_s = sum(share.seconds for share in diagnosis.split)
    return Pace(
        num_steps=num_steps,
        watched_s=watched_s,
        steps_per_s=num_steps / watched_s if num_steps and watched_s > 0.0 else None,
        images_per_s=num_images / watched_s if num_images is not None and watched_s > 0.0 else None,
        step_s=step_s(diagnosis.facts),
    )


def gain_text(finding: Finding, facts: Facts) -> str:
    """What the change would bring, with how it is known: "about 2.6 times faster (measured)"."""
    if finding.speedup is None or finding.saves_s is None:
        return "gain unknown"
    faster = faster_text(finding.speedup, saved_share=finding.saves_s / max(finding.of_s, 1e-9))
    return f"{faster} ({finding.basis}{few_steps_text(facts)})"


def faster_text(factor: float, *, saved_share: float) -> str:
    """A speed-up in words; a small one as the share of the time that it saves."""
    if factor >= _MOST_FACTOR:
        return f"more than {_MOST_FACTOR:.0f} times faster"
    if factor >= _LEAST_FACTOR:
        return f"about {factor:.0f} times faster" if factor >= 9.95 else f"about {factor:.1f} times faster"
    if saved_share >= 0.005:
        return f"about {saved_share * 100:.0f} % less time"
    return "barely faster"


def risk_text(finding: Finding) -> str:
    """The risk in words."""
    return "safe: same results" if finding.risk == "safe" else "changes results"


def percent_text(share: float) -> str:
    """A share in whole percent; "<1 %" rather than a 0 for what is there."""
    percent = share * 100.0
    return "<1 %" if 0.0 < percent < 0.5 else f"{percent:.0f} %"


def few_steps_text(facts: Facts) -> str:
    """ ", from only 6 steps" where so few were counted that figures are rough; "" where there are enough."""
    num_counted = len(facts.counted)
    return f", from only {count_text(num_counted, 'step')}" if 0 < num_counted < FEW_STEPS else ""


def beside_ceiling_text(split: Sequence[TimeShare]) -> str:
    """What the ceiling of a step leaves out, where it matters: the starts of epochs; "" otherwise."""
    share = next((part.share for part in split if part.name == "epoch start"), 0.0)
    return (
        f"The {percent_text(share)} that pass before the first batch of an epoch come on top." if share >= 0.03 else ""
    )


def per_second_text(rate: float | None, unit: str) -> str:
    """A rate with its unit: "2.05 steps/s"."""
    return NOT_AVAILABLE if rate is None else f"{rate_text(rate)} {unit}/s"


def command_text(facts: Facts) -> str:
    """The command, quoted for a shell; for a run, the folder's name."""
    return shlex.join(facts.command) if facts.command else "the program"


def shapes_text(pairs: Sequence[Any], *, is_counted: bool) -> str:
    """The first of pairs: shapes with their counts, or channels from and to, and how many more there are."""
    few = list(pairs)[:4]
    texts = [f"{' × '.join(map(str, a))} ({b:,} times)" if is_counted else f"{a} to {b}" for a, b in few]
    return ", ".join(texts) + (f" and {len(pairs) - len(few):,} more" if len(pairs) > len(few) else "")


def title_text(facts: Facts) -> str:
    """The command, shortened for a heading: paths lose their folders, and arguments after the script are left out."""
    words = [word.rstrip("/") for word in facts.command]
    kept = [Path(word).name or word for word in _until_options(words)]
    return " ".join(kept) or "A program"


def _until_options(words: Sequence[str]) -> Sequence[str]:
    """The words up to the script: the first that is neither an option nor the value of one of Python's."""
    for place, (before, word) in enumerate(itertools.pairwise(words)):
        if not word.startswith("-") and before not in ("-W", "-X"):
            return words[: place + 2]
    return words[:1]


@dataclass(frozen=True, kw_only=True)
class PartStyle:
    """A part's look, the same on every screen and page.

    Attributes:
        letter: one capital that stands for it where there is no color.
        terminal: background color, as rich names it.
        color: on a page, a variable of the style sheet.
    """

    letter: str
    terminal: str
    color: str

    @property
    def css(self) -> str:
        """The color on a page as a CSS value."""
        return f"var(--{self.color})"


# In the order of a bar: no two neighbors look alike to any color vision.
_LOOKS = {
    "waiting for data": PartStyle(letter="W", terminal="yellow", color="part-5"),
    "copy to the device": PartStyle(letter="C", terminal="magenta", color="part-4"),
    "forward": PartStyle(letter="F", terminal="cyan", color="part-1"),
    "backward": PartStyle(letter="B", terminal="bright_blue", color="part-3"),
    "optimizer": PartStyle(letter="O", terminal="green", color="part-2"),
    "validation": PartStyle(letter="V", terminal="bright_magenta", color="part-8"),
    "saving": PartStyle(letter="S", terminal="bright_cyan", color="part-7"),
    "epoch start": PartStyle(letter="E", terminal="bright_yellow", color="part-6"),
    "other": PartStyle(letter="-", terminal="white", color="part-other"),
}


def style_for(name: str) -> PartStyle:
    """The look of a part, by its name in a split or its key in a step; an unknown part looks like "other",
    with its own first letter.
    """
    known = _LOOKS.get(part_label(name))
    return known or PartStyle(letter=name[:1].upper() or "-", terminal="white", color="part-other")


def shown(split: Iterable[TimeShare]) -> list[TimeShare]:
    """The parts that took any time."""
    return [share for share in split if share.seconds > 0.0]


def cells(shares: Sequence[float], width: int) -> list[int]:
    """How many of `width` cells each share gets: they sum to `width`, and the largest remainders are rounded up.

    A share above zero gets at least one cell if there are as many cells as shares.
    """
    whole = sum(shares)
    if whole <= 0.0:
        return [0] * len(shares)
    exact = [share / whole * width for share in shares]
    least = 1 if len(shares) <= width else 0
    given = [max(int(value), least if share > 0.0 else 0) for value, share in zip(exact, shares, strict=True)]
    while sum(given) < width:
        place = max(range(len(exact)), key=lambda i: exact[i] - given[i])
        given[place] += 1
    while sum(given) > width:
        place = max((i for i in range(len(given)) if given[i] > least), key=lambda i: given[i] - exact[i])
        given[place] -= 1
    return given


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie, interpolated linearly; needs at least one value."""
    return float(np.quantile(values, share))


def median(values: Sequence[float]) -> float | None:
    """The median; None for no values."""
    return statistics.median(values) if values else None
