"""Affine transforms and rotations: the voxels, types, affines and draws of MONAI's."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.transforms import Affine, Affined, RandAffine, RandAffined, RandRotate, RandRotated, Rotate, Rotated

from shared.examples import is_thorough
from shared.lowered import check_lowered_alike, metadata_tracked
from shared.monai_items import make_item
from voxelocity.monai.lower import PendingTensor, lowerings
from voxelocity.monai.lower.pending import finish
from voxelocity.monai.steps import Flip

LOWERINGS = lowerings(exact_noise=True)
TOLERANCE = 1e-5
"""Of the largest value: MONAI sums the eight neighbors in float64, or float32 in another order."""
ROTATION_TOLERANCE = 2e-5
"""Likewise: float32 sums in another order, at positions that are the same."""
shapes = st.one_of(st.tuples(*[st.integers(1, 20)] * 2), st.tuples(*[st.integers(1, 14)] * 3))
modes = st.sampled_from([("bilinear", "nearest"), ("nearest", "nearest"), ("bilinear", "bilinear")])
paddings = st.sampled_from(["zeros", "border", "reflection", ("zeros", "border"), ("reflection", "zeros")])
settled = settings(max_examples=25)


def exact_keys(mode):
    return [key for key, interpolation in zip(("image", "label"), mode, strict=True) if interpolation == "nearest"]


def ranges(shape, share):
    num = len(shape)
    return {
        "rotate_range": [0.5 * share] * (num if num == 3 else 1),
        "shear_range": [(0.0, 0.2 * share)] * (6 if num == 3 else 2),
        "translate_range": [4.0 * share] * num,
        "scale_range": [0.3 * share] * num,
    }


@settled
@given(
    shape=shapes,
    seed=st.integers(0, 10_000),
    prob=st.sampled_from([0.0, 0.5, 1.0]),
    share=st.sampled_from([0.0, 0.1, 1.0]),
    mode=modes,
    padding=paddings,
    size=st.sampled_from([None, -1, (8, 8, 8), (9, -1, 5)]),
    num_channels=st.integers(1, 3),
    dtypes=st.sampled_from([("float32", "uint8"), ("int16", "float64"), ("uint8", "int64"), ("float64", "int16")]),
    is_tracked=st.booleans(),
)
def test_rand_affined_gives_what_monai_gives(
    shape, seed, prob, share, mode, padding, size, num_channels, dtypes, is_tracked
):
    item = make_item(
        shape,
        seed=seed,
        num_channels=num_channels,
        image_dtype=dtypes[0],
        label_dtype=dtypes[1],
        is_tracked=is_tracked,
    )
    transform = RandAffined(
        keys=["image", "label", "absent"],
        prob=prob,
        spatial_size=size[: len(shape)] if isinstance(size, tuple) else size,
        mode=(*mode, "nearest"),
        padding_mode=(*padding, "zeros") if isinstance(padding, tuple) else padding,
        allow_missing_keys=True,
        **ranges(shape, share),
    )
    transform.set_random_state(seed)
    with metadata_tracked(is_tracked):
        check_lowered_alike(transform, item, TOLERANCE, exact_keys(mode))


@settled
@given(
    shape=shapes,
    seed=st.integers(0, 10_000),
    prob=st.sampled_from([0.0, 0.5, 1.0]),
    mode=st.sampled_from(["bilinear", "nearest"]),
    padding=st.sampled_from(["zeros", "border", "reflection"]),
    size=st.sampled_from([None, (8, 9, 7)]),
)
def test_rand_affine_called_again_and_again_gives_what_monai_gives(shape, seed, prob, mode, padding, size):
    # Again: where it does nothing, MONAI moves the affine by what it drew before.
    item = make_item(shape, seed=seed)
    transform = RandAffine(
        prob=prob, spatial_size=size and size[: len(shape)], mode=mode, padding_mode=padding, **ranges(shape, 1.0)
    )
    transform.set_random_state(seed)
    for _ in range(3):
        check_lowered_alike(transform, item["image"], TOLERANCE, [""] if mode == "nearest" else [])
        transform(item["image"])


@settled
@given(
    shape=shapes,
    seed=st.integers(0, 10_000),
    mode=modes,
    padding=st.sampled_from(["zeros", "border", "reflection"]),
    size=st.sampled_from([None, 8]),
    align_corners=st.booleans(),
    normalized=st.booleans(),
    is_matrix=st.booleans(),
)
def test_affined_gives_what_monai_gives(shape, seed, mode, padding, size, align_corners, normalized, is_matrix):
    rng, num = np.random.default_rng(seed), len(shape)
    drawn = np.eye(num + 1)
    drawn[:num] += rng.normal(scale=0.2, size=(num, num + 1))
    angles = rng.normal(scale=0.3, size=num if num == 3 else 1).tolist()
    options = {"affine": drawn} if is_matrix else {"rotate_params": angles, "scale_params": [1.1] * num}
    options |= {"spatial_size": size, "align_corners": align_corners}
    item = make_item(shape, seed=seed)
    transform = Affined(keys=["image", "label"], mode=mode, padding_mode=padding, **options)
    check_lowered_alike(transform, item, TOLERANCE, exact_keys(mode))
    alone = Affine(mode=mode[0], padding_mode=padding, normalized=normalized, image_only=True, **options)
    check_lowered_alike(alone, item["image"], TOLERANCE, [""] if mode[0] == "nearest" else [])


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("num_spatial", [2, 3])
def test_positions_halfway_between_two_voxels_take_the_neighbor_that_monai_takes(num_spatial, padding):
    # Torch samples a plane with fewer roundings than a volume.
    step = 1 if is_thorough else 3
    for side, size in itertools.product(range(1, 14, step), range(1, 17, step)):
        item = make_item((side,) * num_spatial, seed=side)
        transform = RandAffine(prob=0.0, spatial_size=(size,) * num_spatial, mode="nearest", padding_mode=padding)
        check_lowered_alike(transform, item["label"], TOLERANCE, [""])


def test_keys_of_one_shape_share_their_places_and_others_have_their_own():
    item = make_item((8, 8, 8)) | {"other": torch.zeros((1, 6, 8, 8))}
    transform = RandAffined(keys=["image", "label", "other"], prob=1.0, spatial_size=(7, 7, 7), rotate_range=0.3)
    made = LOWERINGS[RandAffined].apply(transform, item)
    image, label, other = (made[key].steps[0].positions for key in ("image", "label", "other"))
    assert image is label
    assert other is not image
    assert isinstance(item["image"], torch.Tensor)


def test_a_pending_tensor_that_is_given_is_not_changed_and_is_continued():
    item = make_item((8, 7, 6))
    before = PendingTensor.of(item["image"])
    before.add(Flip(axes=(True, False, False)))
    transform = RandAffine(prob=1.0, rotate_range=(0.3, 0.2, 0.1))
    transform.set_random_state(1)
    after = LOWERINGS[RandAffine].apply(transform, before)
    assert (len(before.steps), len(after.steps)) == (1, 2)
    transform.set_random_state(1)
    wanted = transform(item["image"].flip(1))
    torch.testing.assert_close(finish(after).as_tensor(), wanted.as_tensor(), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (RandAffined(keys="image", mode=3), "mode 3 interpolates by splines; only bilinear and nearest are lowered"),
        (RandAffine(mode="bicubic"), "mode 'bicubic' interpolates by splines"),
        (RandAffine(padding_mode="wrap"), "padding_mode 'wrap' is not one of zeros, border, reflection"),
        (RandAffine(lazy=True), "lazy=True: "),
        (RandAffine(device=torch.device("cuda:0")), "device=cuda:0 moves the work there"),
        (Affine(image_only=False), "image_only=False returns the matrix too"),
        (Affined(keys="image", dtype=np.float64), "only dtype float32 is lowered"),
        (RandRotated(keys="image", dtype=np.float64), "only dtype float32 is lowered"),
        (RandRotate(lazy=True), "lazy=True"),
        (Rotate(angle=0.1, mode="bicubic"), "mode 'bicubic'"),
        (Rotated(keys="image", angle=0.1, align_corners=None), "align_corners=None is left to torch"),
    ],
)
def test_what_cannot_be_equalled_says_why(transform, reason):
    assert reason in LOWERINGS[type(transform)].why_not(transform)


def test_a_machine_that_sums_in_an_unknown_order_is_reported(monkeypatch):
    from voxelocity.monai.lower.spatial import affine

    monkeypatch.setattr(affine, "product_is_fused", lambda num_spatial: None)
    assert "sum in an unknown order" in LOWERINGS[RandAffine].why_not(RandAffine())


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
    check_lowered_alike(transform, item, ROTATION_TOLERANCE, ["label"])


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
    options = {"angle": angles.tolist() if num == 3 else float(angles[0]), "keep_size": keeps_size}
    options |= {"mode": mode, "padding_mode": padding, "rotate_order": "ZYX"}
    drawn = RandRotate(range_x=1.0, range_z=0.5, prob=0.7, keep_size=keeps_size, mode=mode, padding_mode=padding)
    drawn.set_random_state(seed)
    exact = ["", "image", "label"] if mode == "nearest" else []
    for transform, data in ((Rotate(**options), item["image"]), (drawn, item["image"])):
        check_lowered_alike(transform, data, ROTATION_TOLERANCE, exact)
    check_lowered_alike(Rotated(keys=["image", "label"], **options), item, ROTATION_TOLERANCE, exact)
