import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from monai.transforms import (
    RandSimulateLowResolution,
    RandSimulateLowResolutiond,
    RandZoom,
    RandZoomd,
    Resize,
    Resized,
    Zoom,
    Zoomd,
)

from shared.lowered import check_lowered_alike
from shared.monai_items import make_item
from voxelocity.monai.lower import lowerings
from voxelocity.monai.lower.spatial.zoom import interpolation, padded_rows

LOWERINGS = lowerings(exact_noise=True)
TOLERANCE = 2e-5
"""Of the largest value: float32 sums in another order."""
shapes = st.one_of(st.tuples(*[st.integers(4, 20)] * 2), st.tuples(*[st.integers(4, 14)] * 3))
modes = st.sampled_from(["area", "trilinear", "bilinear", "nearest", "nearest-exact"])
settled = settings(max_examples=25)


def exact_keys(mode):
    return ["", "image", "label"] if mode.startswith("nearest") else ["label"]


@settled
@given(
    shape=shapes,
    seed=st.integers(0, 10_000),
    prob=st.sampled_from([0.0, 0.5, 1.0]),
    zooms=st.sampled_from([(0.6, 0.9), (0.9, 1.1), (1.1, 1.6), ([0.7, 1.2], [0.8, 1.4])]),
    mode=modes,
    padding=st.sampled_from(["edge", "constant", "replicate"]),
    keeps_size=st.booleans(),
    dtypes=st.sampled_from([("float32", "uint8"), ("int16", "float64"), ("float64", "int64")]),
    is_tracked=st.booleans(),
)
def test_rand_zoom_in_both_forms_gives_what_monai_gives(
    shape, seed, prob, zooms, mode, padding, keeps_size, dtypes, is_tracked
):
    item = make_item(
        shape, seed=seed, num_channels=2, image_dtype=dtypes[0], label_dtype=dtypes[1], is_tracked=is_tracked
    )
    options = {
        "prob": prob,
        "min_zoom": zooms[0],
        "max_zoom": zooms[1],
        "keep_size": keeps_size,
        "padding_mode": padding,
    }
    transform = RandZoomd(keys=["image", "label"], mode=(mode, "nearest"), **options)
    transform.set_random_state(seed)
    check_lowered_alike(transform, item, TOLERANCE, exact_keys(mode))
    alone = RandZoom(mode=mode, **options)
    alone.set_random_state(seed)
    check_lowered_alike(alone, item["image"], TOLERANCE, exact_keys(mode))


@settled
@given(
    shape=shapes,
    seed=st.integers(0, 10_000),
    zoom=st.sampled_from([0.7, 1.0, 1.3]),
    align_corners=st.booleans(),
    padding=st.sampled_from(["edge", "reflect", "constant"]),
    is_longest=st.booleans(),
)
def test_zoom_and_resize_with_either_corners_give_what_monai_gives(
    shape, seed, zoom, align_corners, padding, is_longest
):
    item = make_item(shape, seed=seed)
    options = {"mode": "trilinear", "align_corners": align_corners}
    size = {"spatial_size": 11, "size_mode": "longest"} if is_longest else {"spatial_size": (7, -1, 21)[: len(shape)]}
    assume(not is_longest or min(shape) * 11 / max(shape) > 0.6)
    for transform, data in (
        (Zoom(zoom, padding_mode=padding, **options), item["image"]),
        (Zoomd(["image", "label"], zoom, padding_mode=padding, **options), item),
        (Resize(**size, **options), item["image"]),
        (Resized(["image", "label"], **size, **options), item),
    ):
        check_lowered_alike(transform, data, TOLERANCE)


@settled
@given(
    shape=shapes,
    seed=st.integers(0, 10_000),
    prob=st.sampled_from([0.0, 0.5, 1.0]),
    down=st.sampled_from(["nearest", "nearest-exact", "area", "linear"]),
    up=st.sampled_from(["linear", "nearest", "area"]),
    align_corners=st.booleans(),
    dtype=st.sampled_from(["float32", "int16", "float64"]),
)
def test_low_resolution_in_both_forms_gives_what_monai_gives(shape, seed, prob, down, up, align_corners, dtype):
    item = make_item(shape, seed=seed, num_channels=2, image_dtype=dtype)
    linear = "bilinear" if len(shape) == 2 else "trilinear"
    options = {"downsample_mode": linear if down == "linear" else down, "zoom_range": (0.2, 1.0), "prob": prob}
    options |= {"upsample_mode": linear if up == "linear" else up, "align_corners": align_corners}
    transform = RandSimulateLowResolutiond(keys=["image", "label"], **options)
    transform.set_random_state(seed)
    check_lowered_alike(transform, item, TOLERANCE)
    alone = RandSimulateLowResolution(**options)
    alone.set_random_state(seed)
    check_lowered_alike(alone, item["image"], TOLERANCE)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_voxels_that_are_taken_along_an_axis_are_those_that_torch_takes_of_a_volume(mode):
    for side in (1, 2, 7, 64, 97, 130):
        for size in (1, 3, 14, 64, 96, 129, 260):
            volume = torch.arange(side, dtype=torch.float32).view(1, 1, 1, side, 1).expand(1, 1, 2, side, 3)
            taken = torch.nn.functional.interpolate(volume.contiguous(), size=(3, size, 2), mode=mode)[0, 0, 0, :, 0]
            table = interpolation(side, size, mode, False)
            np.testing.assert_array_equal(table.index[:, 0], taken.numpy().astype(int))


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (RandZoomd(keys="image", mode="bicubic"), "mode 'bicubic' is not one of linear, bilinear, trilinear, nearest"),
        (RandZoom(mode="nearest", align_corners=True), "align_corners does not apply to mode 'nearest'"),
        (RandZoomd(("a", "b"), mode="nearest", align_corners=(None, True)), "does not apply to mode 'nearest'"),
        (RandZoomd(("a", "b"), mode=("area", "nearest"), align_corners=(None, True)), "apply to mode 'nearest'"),
        (RandZoom(padding_mode="symmetric"), "padding_mode 'symmetric' is not one of constant, edge, replicate, refl"),
        (RandZoom(padding_mode="constant", value=3.0), "arguments of the padding are not lowered: value"),
        (Zoomd("image", 1.2, dtype=np.float64), "only dtype float32 is lowered"),
        (Resize((4, 4), anti_aliasing=True), "anti_aliasing smooths first"),
        (Resized("image", (4, 4), lazy=True), "lazy=True"),
        (RandSimulateLowResolutiond("image", upsample_mode="bicubic"), "mode 'bicubic'"),
    ],
)
def test_what_cannot_be_equalled_says_why(transform, reason):
    assert reason in LOWERINGS[type(transform)].why_not(transform)


def test_a_zoom_that_leaves_nothing_is_refused_in_words():
    item = make_item((1, 8, 8))
    with pytest.raises(
        ValueError, match=r"zooming an image of shape \(1, 8, 8\) by .* leaves nothing of it; raise min"
    ):
        LOWERINGS[Zoom].apply(Zoom(0.5), item["image"])


def test_a_mirror_image_that_is_too_short_is_refused_in_words():
    with pytest.raises(
        ValueError, match="'reflect' cannot pad 3 voxels to 12: the image is too small for a mirror image; choose"
    ):
        padded_rows(3, 12, "reflect")


def test_a_resize_to_another_number_of_axes_is_monais():
    item = make_item((8, 8))
    check_lowered_alike(Resize((4, 4, 4)), item["image"])
    check_lowered_alike(Resized(["image", "label"], (4, 4, 4), mode=("area", "nearest")), item)
    for size in (4, -1):
        with pytest.raises(ValueError, match="must be greater or equal to img spatial dimensions"):
            LOWERINGS[Resize].apply(Resize(size), item["image"])
