import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.transforms import RandRotate, RandRotated, Rotate, Rotated

from shared.monai_items import assert_parity, make_item
from voxelocity.interop.monai.difference import compare
from voxelocity.interop.monai.lower.spatial.rotate import LOWERINGS

TOLERANCE = 2e-5
"""Of the largest value: float32 sums in another order, at places that are the same."""
shapes = st.one_of(st.tuples(*[st.integers(1, 20)] * 2), st.tuples(*[st.integers(1, 14)] * 3))
paddings = st.sampled_from(["zeros", "border", "reflection", ("zeros", "border")])
settled = settings(max_examples=25)


@pytest.mark.filterwarnings("ignore:Since version 1.3.0, affine_grid behavior has changed for unit-size grids")
@settled
@given(
    shape=shapes,
    seed=st.integers(0, 10_000),
    prob=st.sampled_from([0.0, 0.5, 1.0]),
    padding=paddings,
    keeps_size=st.booleans(),
    align_corners=st.sampled_from([False, True, (True, False)]),
    dtypes=st.sampled_from([("float32", "uint8"), ("int16", "float64"), ("float64", "int64")]),
    is_tracked=st.booleans(),
)
def test_rand_rotated_gives_what_monai_gives(shape, seed, prob, padding, keeps_size, align_corners, dtypes, is_tracked):
    item = make_item(shape, seed=seed, image_dtype=dtypes[0], label_dtype=dtypes[1], is_tracked=is_tracked)
    transform = RandRotated(
        keys=["image", "label"],
        range_x=0.8,
        range_y=(0.1, 0.4),
        range_z=0.3,
        prob=prob,
        keep_size=keeps_size,
        mode=("bilinear", "nearest"),
        padding_mode=padding,
        align_corners=align_corners,
    )
    transform.set_random_state(seed)
    _, _, differences = compare(transform, LOWERINGS[RandRotated], item)
    assert_parity(differences, ["label"], TOLERANCE)


@settled
@given(
    shape=shapes,
    seed=st.integers(0, 10_000),
    mode=st.sampled_from(["bilinear", "nearest"]),
    padding=st.sampled_from(["zeros", "border", "reflection"]),
    keeps_size=st.booleans(),
    quarter=st.booleans(),
)
def test_rotate_in_all_its_forms_gives_what_monai_gives(shape, seed, mode, padding, keeps_size, quarter):
    item, num = make_item(shape, seed=seed, num_channels=2), len(shape)
    angles = np.random.default_rng(seed).uniform(-2, 2, size=3)
    if quarter:
        angles = np.round(angles) * np.pi / 2
    told = {"angle": angles.tolist() if num == 3 else float(angles[0]), "keep_size": keeps_size}
    told |= {"mode": mode, "padding_mode": padding, "rotate_order": "ZYX"}
    drawn = RandRotate(range_x=1.0, range_z=0.5, prob=0.7, keep_size=keeps_size, mode=mode, padding_mode=padding)
    drawn.set_random_state(seed)
    exact = ["", "image", "label"] if mode == "nearest" else []
    for transform, data in ((Rotate(**told), item["image"]), (drawn, item["image"])):
        _, _, differences = compare(transform, LOWERINGS[type(transform)], data)
        assert_parity(differences, exact, TOLERANCE)
    _, _, differences = compare(Rotated(keys=["image", "label"], **told), LOWERINGS[Rotated], item)
    assert_parity(differences, exact, TOLERANCE)


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (RandRotated(keys="image", dtype=np.float64), "only dtype float32 is lowered"),
        (RandRotate(lazy=True), "lazy=True"),
        (Rotate(angle=0.1, mode="bicubic"), "mode 'bicubic'"),
        (Rotated(keys="image", angle=0.1, align_corners=None), "align_corners=None is left to torch"),
    ],
)
def test_what_cannot_be_equalled_says_why(transform, reason):
    assert reason in LOWERINGS[type(transform)].why_not(transform)
