"""The parity table: each case compared and timed, draw by draw."""

from __future__ import annotations

import copy
import functools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.stats import ks_2samp

from parity.case import ParityCase
from parity.cases import all_cases
from parity.compare import compare
from voxelocity.monai.difference import Difference
from voxelocity.monai.lower import Lowering, lowerings
from voxelocity.monai.lower.pending import finish

SMALLEST_P = 1e-3
"""Of a draw whose noise counts as distributed like MONAI's. Seeds are fixed: what passes once always passes."""


@dataclass(frozen=True, kw_only=True)
class ParityRow:
    """The outcome of one case.

    Attributes:
        transform: name of MONAI's class.
        arguments: in words.
        num_draws: how often both were drawn and compared.
        keys: of the tensors that were compared.
        largest: largest difference of two values, relative to the largest absolute value of MONAI's; where noise is
            the engine's own, of the other values.
        num_label_voxels: that differ, over all draws; None where the transform changes no label.
        tolerance: for `largest`.
        smallest_p: over the draws and keys, of the two-sample Kolmogorov-Smirnov test of what noise of the engine's own
            and MONAI's change in an image; None where both have the same noise, or none.
        words: what else differs: types, shapes, affines, metadata, draws left behind. "" for nothing.
        monai_ms: median CPU time of MONAI's transform.
        our_ms: median CPU time of drawing and finishing. MONAI's crops are views of the volume; ours are copies.
    """

    transform: str
    arguments: str
    num_draws: int
    keys: tuple[str, ...]
    largest: float
    num_label_voxels: int | None
    tolerance: float
    smallest_p: float | None
    words: str
    monai_ms: float
    our_ms: float

    @property
    def is_equal(self) -> bool:
        """Whether values are equal within the tolerance, labels exactly, noise in distribution, and nothing differs."""
        has_same_noise = self.smallest_p is None or self.smallest_p >= SMALLEST_P
        return not self.words and not self.num_label_voxels and self.largest <= self.tolerance and has_same_noise


def cases(side: int = 96) -> Iterator[tuple[ParityCase, Lowering]]:
    """All cases for patches of this many voxels a side, each with the lowering that it is about."""
    for case in all_cases(side):
        yield case, lowerings(exact_noise=not case.is_seeded)[case.transform]


def row_of(case: ParityCase, lowering: Lowering, *, num_draws: int) -> ParityRow:
    """The case drawn, compared and timed this many times, the seeds being 0, 1, ...

    Raises:
        ValueError: the case cannot be lowered.
    """
    reason = lowering.why_not(case.made(0))
    if reason:
        raise ValueError(f"parity table: {case.transform.__name__}({case.words}) is not lowered: {reason}")
    largest, num_label_voxels, words, keys, p_values = 0.0, 0, "", set(), []
    for seed in range(num_draws):
        item = case.item(seed)
        theirs, ours, differences = compare(case.made(seed), lowering, item)
        if case.is_seeded:
            p_values += [_p_of_noise(theirs[key], ours[key], item[key]) for key in case.keys]
            differences = list(_beside_noise(differences, case))
        for difference in differences:
            keys.add(difference.key.rpartition(".")[2])
            words = words or difference.words or difference.metadata
            if difference.largest:
                largest = max(largest, difference.largest / (difference.scale or 1.0))
        num_label_voxels += sum(_num_different(theirs, ours, key) for key in case.label_keys)
    monai_ms, our_ms = _times(case, lowering, num_draws)
    return ParityRow(
        transform=case.transform.__name__,
        arguments=case.words,
        num_draws=num_draws,
        keys=tuple(sorted(keys)),
        largest=largest,
        num_label_voxels=num_label_voxels if case.label_keys else None,
        tolerance=case.tolerance,
        smallest_p=min(p_values, default=None),
        words=words,
        monai_ms=monai_ms,
        our_ms=our_ms,
    )


def _beside_noise(differences: list[Difference], case: ParityCase) -> Iterator[Difference]:
    """Those that noise of the engine's own does not explain: not its numbers, nor the state that its seed leaves."""
    for difference in differences:
        if difference.key in case.keys:
            yield replace(difference, largest=0.0)
        elif difference.key != "R":
            yield difference


def _p_of_noise(theirs: Any, ours: Any, source: Any) -> float:
    """How likely two samples of one distribution would differ as much as what both sides changed; 1 for nothing."""
    one, other = ((np.asarray(made) - np.asarray(source)).ravel() for made in (theirs, ours))
    return float(ks_2samp(one, other).pvalue)


def _num_different(theirs: Any, ours: Any, key: str) -> int:
    """Voxels of a key that differ, over all samples."""
    if isinstance(theirs, list):
        return sum(_num_different(their_item, our_item, key) for their_item, our_item in zip(theirs, ours, strict=True))
    if key not in theirs:
        return 0
    return int((np.asarray(theirs[key]) != np.asarray(ours[key])).sum())


def _times(case: ParityCase, lowering: Lowering, num_draws: int) -> tuple[float, float]:
    """Median CPU times in ms of MONAI's and of ours, alternating, after one of each that does not count."""
    monai_ms, our_ms = [], []
    with _one_thread():
        for seed in range(-1, num_draws):
            item = case.item(abs(seed))
            transform, twin = case.made(abs(seed)), case.made(abs(seed))
            theirs = _cpu_ms(transform, copy.deepcopy(item))
            ours = _cpu_ms(functools.partial(_made, lowering, twin), item)
            if seed >= 0:
                monai_ms.append(theirs)
                our_ms.append(ours)
    return statistics.median(monai_ms), statistics.median(our_ms)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Torch as in workers: waiting of its threads for each other would count as CPU time too."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _made(lowering: Lowering, transform: Any, data: Any) -> Any:
    return finish(lowering.apply(transform, data))


def _cpu_ms(call: Callable[[Any], Any], data: Any) -> float:
    begin = time.process_time()
    call(data)
    return (time.process_time() - begin) * 1000
