"""The parity table: every case is equal, and what is not would show."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import monai.transforms as mt
import numpy as np
import pytest
import torch
from monai.transforms import MapTransform

from parity.case import ParityCase, item_of
from parity.table import SMALLEST_P, ParityRow, cases, row_of
from voxelocity.monai.lower import Lowering, PendingTensor, lowerings

ALL = list(cases(side=24))
"""With images and sizes of a quarter of the table's."""
_NAMES = [case.transform.__name__ for case, _ in ALL]
# Of each transform daily the first case and the last; the others differ little from these.
_PARAMETERS = [
    pytest.param(
        number,
        id=f"{name}-{number}",
        marks=[pytest.mark.nightly] if name in _NAMES[:number] and name in _NAMES[number + 1 :] else [],
    )
    for number, name in enumerate(_NAMES)
]


@pytest.fixture(autouse=True)
def _nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which computes each case four times more."""
    monkeypatch.setattr("parity.table._times", lambda *_: (0.0, 0.0))


def _small(seed: int) -> dict[str, Any]:
    return item_of(seed, shape=(6, 5, 4))


def _names(known: Iterable[Any]) -> Iterator[Any]:
    return (transform for transform in known if issubclass(transform, MapTransform))


@pytest.mark.parametrize("exact_noise", [True, False])
def test_every_dictionary_transform_that_is_lowered_has_a_case(exact_noise: bool) -> None:
    known = set(_names(lowerings(exact_noise=exact_noise)))
    tried = {case.transform for case, _ in ALL if not case.is_seeded}
    assert known - tried == set()
    assert {case.transform for case, _ in ALL if case.is_seeded} == {mt.RandGaussianNoised, mt.RandRicianNoised}


@pytest.mark.parametrize("number", _PARAMETERS)
def test_each_case_is_as_equal_as_the_table_promises(number: int) -> None:
    case, lowering = ALL[number]
    row = row_of(case, lowering, num_draws=1)
    assert (row.words, row.num_label_voxels) == ("", 0 if "label" in case.keys else None)
    assert row.largest <= row.tolerance
    assert (row.smallest_p is not None) == case.is_seeded
    assert row.keys
    assert row.is_equal


def test_labels_that_a_transform_could_change_are_counted() -> None:
    for case, _ in ALL:
        assert case.label_keys == (("label",) if "label" in case.keys else ())


def test_sizes_of_the_table_are_those_of_patches_of_96_voxels() -> None:
    tried = {(case.transform, case.words) for case, _ in cases()}
    assert (mt.RandSpatialCropSamplesd, "roi_size=(96, 96, 96), num_samples=2") in tried
    assert len(tried) == len({(case.transform, case.words) for case, _ in ALL})


def _seeded_row(strength: float) -> ParityRow:
    def noisy(transform: Any, data: dict[str, Any]) -> dict[str, Any]:
        noise = np.random.default_rng(3).normal(0, strength, data["image"].shape).astype(np.float32)
        return {**data, "image": data["image"] + torch.from_numpy(noise)}

    case = ParityCase(transform=mt.RandGaussianNoised, item=functools.partial(item_of, shape=(24, 24, 24)),
                      arguments={"keys": "image", "prob": 1.0, "std": 5.0, "sample_std": False}, label_keys=(),
                      is_seeded=True)  # fmt: skip
    return row_of(case, Lowering(apply=noisy), num_draws=2)


@pytest.mark.parametrize(("strength", "is_equal"), [(5.0, True), (6.0, False)])
def test_noise_of_the_engines_own_is_compared_in_distribution(strength: float, is_equal: bool) -> None:
    row = _seeded_row(strength)
    assert (row.words, row.largest) == ("", 0.0)
    assert (row.smallest_p > SMALLEST_P) == row.is_equal == is_equal


def test_a_difference_is_reported_with_the_labels_counted() -> None:
    def wrong(transform: Any, data: dict[str, Any]) -> dict[str, Any]:
        label = data["label"].clone()
        label[0, 0] = 9
        return {**data, "image": PendingTensor.of(data["image"] + 50), "label": label}

    case = ParityCase(transform=mt.Identityd, arguments={"keys": "image"}, item=_small)
    row = row_of(case, Lowering(apply=wrong), num_draws=2)
    assert row.num_label_voxels == 2 * 5 * 4
    assert row.largest == 9 / 2
    assert not row.is_equal
    assert row.keys == ("image", "label")
    assert row.words == ""


def test_what_differs_besides_the_voxels_is_reported_in_words() -> None:
    case = ParityCase(transform=mt.Flipd, arguments={"keys": "image", "spatial_axis": 0}, item=_small)
    row = row_of(case, Lowering(apply=lambda transform, data: {**data, "image": data["image"].flip(1)}), num_draws=1)
    assert row.words.startswith("affines ")
    assert (row.transform, row.arguments, row.num_draws) == ("Flipd", "spatial_axis=0", 1)


def test_a_case_that_cannot_be_lowered_is_refused() -> None:
    case = ParityCase(transform=mt.SpatialPadd, arguments={"keys": "image", "spatial_size": 4}, item=_small)
    lowering = Lowering(apply=lambda transform, data: data, why_not=lambda transform: "never")
    with pytest.raises(ValueError, match=r"SpatialPadd\(spatial_size=4\) is not lowered: never"):
        row_of(case, lowering, num_draws=1)
