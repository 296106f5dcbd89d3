from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from monai.data import list_data_collate, set_track_meta
from monai.data.meta_tensor import MetaTensor
from monai.transforms import Compose, EnsureTyped, RandFlipd, RandRotate90d, RandSpatialCropSamplesd
from monai.utils.misc import set_determinism

from shared.small_lowerings import SMALL
from voxelocity.interop.monai.chain.batch import start_batch
from voxelocity.interop.monai.difference import differences_of
from voxelocity.interop.monai.lower import Sketch
from voxelocity.interop.monai.lower.finish import finish
from voxelocity.interop.monai.lower.walk import Walker


def _items(num: int, side: int = 4) -> list[dict[str, Any]]:
    rng = np.random.default_rng(2)
    return [
        {
            "image": MetaTensor(rng.normal(size=(2, side, side, side)).astype(np.float32), meta={"id": n}),
            "label": MetaTensor(rng.integers(0, 3, size=(1, side, side, side)).astype(np.uint8)),
            "number": n,
        }
        for n in range(num)
    ]


def _both(transforms: list[Any], items: list[Any]) -> tuple[Any, Any]:
    chain = Compose(transforms)
    walker = Walker(chain.transforms, lowerings=SMALL)
    chain.set_random_state(3)
    theirs = list_data_collate([finish(walker.sketch(item)) for item in items])
    chain.set_random_state(3)
    with ThreadPoolExecutor(2) as pool:
        ours = start_batch([walker.sketch(item) for item in items], pool).result()
    return theirs, ours


def _turns() -> list[Any]:
    return [RandFlipd(["image", "label"], 0.5, spatial_axis=1), RandRotate90d(["image", "label"], 0.5)]


@pytest.mark.parametrize("is_tracked", [True, False])
def test_a_batch_is_what_monai_collates(is_tracked: bool) -> None:
    set_track_meta(is_tracked)
    try:
        theirs, ours = _both(_turns(), _items(5))
    finally:
        set_track_meta(True)
    assert type(theirs["image"]) is type(ours["image"]) is (MetaTensor if is_tracked else torch.Tensor)
    assert [(one.largest, one.words) for one in differences_of(theirs, ours)] == [(0.0, "")] * 3
    if is_tracked:
        assert ours["image"].is_batch
        assert ours["image"].spatial_ndim == theirs["image"].spatial_ndim
        assert ours["image"].applied_operations == theirs["image"].applied_operations


def test_samples_of_several_items_stand_one_after_the_other() -> None:
    crops = RandSpatialCropSamplesd(["image", "label"], 2, 3, random_size=False)
    theirs, ours = _both([crops, *_turns()], _items(2))
    assert ours["image"].shape == (6, 2, 2, 2, 2)
    assert all(one.largest == 0.0 and not one.words for one in differences_of(theirs, ours))


def test_bare_tensors_are_collated_too() -> None:
    items = [item["image"] for item in _items(3)]
    with ThreadPoolExecutor(2) as pool:
        ours = start_batch([Sketch.of(item) for item in items], pool).result()
    assert all(one.largest == 0.0 and not one.words for one in differences_of(list_data_collate(items), ours))


def test_items_that_nobody_lowered_are_collated_as_monai_does() -> None:
    theirs, ours = _both([EnsureTyped(["image", "label"])], _items(3))
    assert all(one.largest == 0.0 and not one.words for one in differences_of(theirs, ours))


def test_patches_of_different_shapes_are_refused_in_monais_words() -> None:
    sketches = [{"image": Sketch.of(_items(1, side)[0]["image"])} for side in (4, 5)]
    with ThreadPoolExecutor(2) as pool, pytest.raises(RuntimeError, match="pad_list_data_collate"):
        start_batch(sketches, pool)


def test_an_error_in_making_is_raised_where_the_batch_is_asked_for() -> None:
    sketch = Sketch.of(_items(1)[0]["image"])
    sketch.steps.append("no step")  # type: ignore[arg-type]
    with ThreadPoolExecutor(2) as pool:
        pending = start_batch([{"image": sketch}], pool)
        with pytest.raises(AttributeError):
            pending.result()


def test_until_the_loops_are_compiled_torch_makes_a_batch_unless_monai_is_to_be_deterministic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meanwhile = []
    monkeypatch.setattr(
        "voxelocity.core.waiting.without_waiting",
        lambda by_kernels, plain: (meanwhile.append(1), plain())[1],
    )
    theirs, ours = _both(_turns(), _items(5))
    assert len(meanwhile) == 5
    assert [(one.largest, one.words) for one in differences_of(theirs, ours)] == [(0.0, "")] * 3
    set_determinism(4)
    try:
        _both(_turns(), _items(2))
    finally:
        set_determinism(None)
    assert len(meanwhile) == 5
