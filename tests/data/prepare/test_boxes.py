from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from voxelocity.data.prepare.boxes import class_boxes


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
