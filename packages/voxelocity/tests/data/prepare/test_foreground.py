from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxelocity.data.prepare import foreground
from voxelocity.data.prepare.foreground import FindForeground, class_boxes, find_foreground
from voxelocity_observe.core.errors import ScanError


@given(shape=st.tuples(*[st.integers(1, 7)] * 3), per_class=st.integers(1, 40), seed=st.integers(0, 999))
def test_indices_are_voxels_of_their_class(shape, per_class: int, seed: int) -> None:
    label = np.random.default_rng(seed).integers(0, 4, shape).astype(np.uint8)
    found = find_foreground(label, per_class=per_class, max_total=10**6)
    assert set(found) == set(np.unique(label).tolist()) - {0}
    for index, flat in found.items():
        every = np.flatnonzero(label == index)
        assert flat.dtype == np.int32
        assert len(flat) == min(per_class, len(every))
        assert np.isin(flat, every).all()
        assert (np.diff(flat) > 0).all()
        if len(every) <= per_class:
            assert np.array_equal(flat, every)


def test_choice_is_spread_from_the_first_to_the_last_voxel() -> None:
    label = np.ones((10, 10, 10), np.uint8)
    flat = find_foreground(label, per_class=11, max_total=11)[1]
    assert (flat[0], flat[-1]) == (0, 999)
    assert np.ptp(np.diff(flat)) <= 1


def test_a_small_case_remembers_few_voxels_but_one_of_every_class(make_volume) -> None:
    label = np.ones((10, 10, 10), np.uint8)
    label[0, 0, 0], label[5:] = 2, 3
    found = FindForeground(per_class=1000)(make_volume(label.astype(np.float32), None, label)).foreground
    assert {index: len(voxels) for index, voxels in found.items()} == {1: 33, 2: 1, 3: 33}


def test_volume_without_label_has_no_foreground(make_volume) -> None:
    assert FindForeground(per_class=3)(make_volume(np.zeros((2, 2, 2)))).foreground == {}


def test_a_scan_with_more_voxels_than_int32_can_number_is_refused(monkeypatch, make_volume) -> None:
    monkeypatch.setattr(foreground, "_MAX_VOXELS", 26)
    with pytest.raises(ScanError, match="case 'liver_01' has 27 voxels, at most 26 can be numbered; choose a coarser"):
        FindForeground(per_class=5)(make_volume(np.zeros((3, 3, 3)), label=np.ones((3, 3, 3), np.uint8)))


@given(shape=st.tuples(*[st.integers(1, 6)] * 3), order=st.permutations([0, 1, 2]), seed=st.integers(0, 999))
def test_each_class_fills_its_box_to_the_edges(shape, order, seed: int) -> None:
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 5, shape).astype(np.uint8) * (rng.random(shape) < 0.3)
    label = np.ascontiguousarray(label.transpose(order)).transpose(np.argsort(order))[:, ::-1]
    boxes = class_boxes(label)
    assert list(boxes) == [k for k in np.unique(label) if k]
    for index, box in boxes.items():
        places = np.argwhere(label == index)
        assert [part.start for part in box] == places.min(0).tolist()
        assert [part.stop for part in box] == (places.max(0) + 1).tolist()
