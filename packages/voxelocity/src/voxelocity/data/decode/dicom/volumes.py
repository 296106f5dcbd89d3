"""The volumes of a series whose slices share their places, such as time points, told apart by what the slices say."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from voxelocity.core.volume import Array
from voxelocity.data.decode.dicom.files import APART, Slice
from voxelocity_observe.core.plain import excerpt

# Of the usual step between places: slices closer than this share one.
_SAME_PLACE = 0.05
# Of the largest step: what is below is rounding.
_ROUNDING = 1e-3
# What no volume mixes, whatever the order of its slices.
_OF_ONE_KIND = ("DiffusionBValue", "EchoTime", "ImageType")
_LISTED, _NAME = 4, 40


def divide(slices: Sequence[Slice], normal: Array) -> tuple[list[list[Slice]], str]:
    """The volumes of a series, and in words how many there are and how they differ.

    There are as many volumes as slices share each place, with one slice of each place. Where slices cannot be divided
    so, or are one volume, all of them are one, without words.

    The attribute that separates them exactly decides, else two of them, else the numbers of the slices (InstanceNumber)
    at each place. Volumes are in the order of their first slices' numbers, as dcm2niix has them.

    Args:
        slices: with positions, all of one orientation.
        normal: (3,), of their planes.

    Returns:
        The slices of each volume, in no order, and the words.
    """
    whole = [[*slices]], ""
    places = number_places(np.array([slice_.position_mm for slice_ in slices]) @ normal)
    counts = Counter(places)
    num_volumes = max(counts.values())
    uids = [slice_.uid for slice_ in slices if slice_.uid]
    if num_volumes == 1 or min(counts.values()) < num_volumes or len(set(uids)) < len(uids):
        return whole
    groups = _by_attributes(slices, places, num_volumes) or _by_numbers(slices, places)
    if not groups:
        return whole
    groups.sort(key=lambda group: min(slice_.number for slice_ in group))
    return groups, f"{num_volumes} volumes, which differ in {differences(groups)}"


def differences(groups: Sequence[Sequence[Slice]]) -> str:
    """The attributes whose values are those of one group each, in words."""
    found = []
    for keyword, word in APART.items():
        values = [{dict(slice_.apart).get(keyword) for slice_ in group} for group in groups]
        if all(len(of_group) == 1 for of_group in values) and len(every := set.union(*values) - {None}) > 1:
            ordered = sorted(every, key=lambda value: (isinstance(value, str), value))
            shown = [f"{value:g}" if isinstance(value, float) else excerpt(str(value), _NAME) for value in ordered]
            few = len(shown) <= _LISTED
            found.append(f"{word} ({keyword} {', '.join(shown) if few else f'{shown[0]} to {shown[-1]}'})")
    return " and ".join(found) or "their order (InstanceNumber)"


def number_places(positions_mm: Array) -> list[int]:
    """The number of the place of each slice, counted along the normal."""
    order = np.argsort(positions_mm, kind="stable")
    steps = np.diff(positions_mm[order])
    real = steps[steps > _ROUNDING * steps.max(initial=0.0)]
    is_next = steps > _SAME_PLACE * float(np.median(real)) if len(real) else np.zeros(len(steps), dtype=bool)
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.concatenate([[0], np.cumsum(is_next)])
    return [int(place) for place in places]


def _by_attributes(slices: Sequence[Slice], places: Sequence[int], num_volumes: int) -> list[list[Slice]]:
    """The slices by the first attribute, or pair of them, that gives each volume one slice of each place; or empty."""
    found = [dict(slice_.apart) for slice_ in slices]
    values = {keyword: [values.get(keyword) for values in found] for keyword in APART}
    known = [keyword for keyword, column in values.items() if None not in column and len(set(column)) > 1]
    for keywords in itertools.chain(itertools.combinations(known, 1), itertools.combinations(known, 2)):
        keys = list(zip(*(values[keyword] for keyword in keywords), strict=True))
        if len(set(keys)) == num_volumes and len(set(zip(keys, places, strict=True))) == len(slices):
            groups: dict[tuple[object, ...], list[Slice]] = defaultdict(list)
            for key, slice_ in zip(keys, slices, strict=True):
                groups[key].append(slice_)
            return list(groups.values())
    return []


def _by_numbers(slices: Sequence[Slice], places: Sequence[int]) -> list[list[Slice]]:
    """The first slice of each place, the second of each, ...; empty if numbers are equal, or this mixes kinds."""
    if len(set(zip(places, (slice_.number for slice_ in slices), strict=True))) < len(slices):
        return []
    groups: dict[int, list[Slice]] = defaultdict(list)
    num_before: Counter[int] = Counter()
    for place, slice_ in sorted(zip(places, slices, strict=True), key=lambda pair: pair[1].number):
        groups[num_before[place]].append(slice_)
        num_before[place] += 1
    for keyword in _OF_ONE_KIND:
        if any(len({dict(slice_.apart).get(keyword) for slice_ in group}) > 1 for group in groups.values()):
            return []
    return list(groups.values())
