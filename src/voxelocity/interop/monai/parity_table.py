"""The parity table: each case compared and timed, draw by draw."""

from __future__ import annotations

import copy
import functools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from voxelocity.interop.monai.lower import (
    Lowering,
    Lowerings,
    cast,
    crop,
    crop_at,
    crop_cases,
    dropout,
    items,
    pad,
    turn,
)
from voxelocity.interop.monai.lower.finish import finish
from voxelocity.interop.monai.parity import compare
from voxelocity.interop.monai.parity_cases import ParityCase


@dataclass(frozen=True, kw_only=True)
class ParityRow:
    """What came of one case.

    Attributes:
        transform: name of MONAI's class.
        arguments: in words.
        num_draws: how often both were drawn and compared.
        keys: of the tensors that were compared.
        largest: largest difference of two values, relative to the largest absolute value of MONAI's.
        num_label_voxels: that differ, over all draws.
        tolerance: for `largest`.
        words: what else differs: types, shapes, affines, metadata, draws left behind. "" for nothing.
        monai_ms: median CPU time of MONAI's transform.
        our_ms: median CPU time of drawing and finishing. MONAI's crops are views of the volume; ours are copies.
    """

    transform: str
    arguments: str
    num_draws: int
    keys: tuple[str, ...]
    largest: float
    num_label_voxels: int
    tolerance: float
    words: str
    monai_ms: float
    our_ms: float


def cases() -> Iterator[tuple[ParityCase, Lowering]]:
    """All cases, each with the lowering that it is about."""
    lowerings: Lowerings = {
        name: lowering
        for module in (cast, crop, crop_at, dropout, items, pad, turn)
        for name, lowering in module.LOWERINGS.items()
    }
    for case in crop_cases.CASES:
        yield case, lowerings[case.transform]


def row_of(case: ParityCase, lowering: Lowering, *, num_draws: int) -> ParityRow:
    """The case drawn, compared and timed this many times, the seeds being 0, 1, ...

    Raises:
        ValueError: the case cannot be lowered.
    """
    reason = lowering.why_not(case.made(0))
    if reason:
        raise ValueError(f"parity table: {case.transform.__name__}({case.words}) is not lowered: {reason}")
    largest, num_label_voxels, words, keys = 0.0, 0, "", set()
    for seed in range(num_draws):
        theirs, ours, differences = compare(case.made(seed), lowering, case.item(seed))
        for difference in differences:
            keys.add(difference.key.rpartition(".")[2])
            words = words or difference.words
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
        num_label_voxels=num_label_voxels,
        tolerance=case.tolerance,
        words=words,
        monai_ms=monai_ms,
        our_ms=our_ms,
    )


def _num_different(theirs: Any, ours: Any, key: str) -> int:
    """Voxels of a key that differ, over all samples."""
    if isinstance(theirs, list):
        return sum(_num_different(one, other, key) for one, other in zip(theirs, ours, strict=True))
    if key not in theirs:
        return 0
    return int((np.asarray(theirs[key]) != np.asarray(ours[key])).sum())


def _times(case: ParityCase, lowering: Lowering, num_draws: int) -> tuple[float, float]:
    """Median CPU times in ms of MONAI's and of ours, in turn, after one of each that does not count."""
    monai_ms, our_ms = [], []
    for seed in range(-1, num_draws):
        item = case.item(abs(seed))
        transform, twin = case.made(abs(seed)), case.made(abs(seed))
        theirs = _cpu_ms(transform, copy.deepcopy(item))
        ours = _cpu_ms(functools.partial(_made, lowering, twin), item)
        if seed >= 0:
            monai_ms.append(theirs)
            our_ms.append(ours)
    return statistics.median(monai_ms), statistics.median(our_ms)


def _made(lowering: Lowering, transform: Any, data: Any) -> Any:
    return finish(lowering.apply(transform, data))


def _cpu_ms(call: Callable[[Any], Any], data: Any) -> float:
    begin = time.process_time()
    call(data)
    return (time.process_time() - begin) * 1000
