"""All engines against the float64 reference, on volumes as caches keep them.

"triton" needs a CUDA device; `test_triton.py` runs its part of this file once more in Triton's interpreter.
"""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared.limits import HANGS_S
from voxelocity.core.batch import Draw, ImageFormat
from voxelocity.core.region import Region
from voxelocity.core.volume import Grid, Scaling, Volume
from voxelocity.data.augment import (
    EFFECTS,
    AugmentConfig,
    AugmentParams,
    ResidentSource,
    Source,
    augment,
    chosen_engine,
    filling_device,
    needed_box,
    sample,
)
from voxelocity.data.augment.noise import standard_normal
from voxelocity.data.cache.device import DeviceTier
from voxelocity.testing.augment_reference import augment_one, source_places
from voxelocity_observe.core.errors import ConfigError

ENGINES = ("native", "torch", pytest.param("triton", marks=pytest.mark.gpu))
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
NUM_SAMPLES = 2 if IS_INTERPRETED else 6
IMAGE_TOLERANCE = 2e-3
"""Largest difference from the reference for intensities of deviation 1: places are float32, off by up to 3e-5 voxels,
neighbors of white noise differ by up to 10, and a gamma below 1 is steep at a channel's lower end."""
TIE_VOXEL = 1e-3
"""Labels agree wherever a place lies further than this from the middle between two voxels."""

NOTHING = AugmentConfig.only()


def often(effect):
    """A probability with which some of a few samples draw an effect."""
    return (0.5, 0.5, 0.5) if isinstance(getattr(NOTHING, effect.probability), tuple) else 1.0


SETTINGS = {
    "affine": {"translate_voxel": (3.0, 2.0, 1.0), "shear": 0.2},
    "elastic": {"elastic_spacing_voxel": 8.0, "elastic_voxel": 3.0},
    "bias": {"bias_strength": 0.3},
    "blur": {"blur_sigma_range": (0.4, 1.5)},
    "contrast": {"contrast_range": (0.5, 2.0)},
    "cutout": {"cutout_boxes": 3, "cutout_value": -2.0},
}
"""With which some effects show more."""
EACH = {
    "nothing": {},
    **{effect.name: {effect.probability: often(effect)} | SETTINGS.get(effect.name, {}) for effect in EFFECTS},
    "affine, voted": {"affine_probability": 1.0, "label_interpolation": "vote", "flip_probability": (0.5, 0.5, 0.5)},
    "elastic and affine": {"elastic_probability": 1.0, "affine_probability": 1.0, "flip_probability": (0.5, 0.5, 0.5)},
    "brightness": {"intensity_scale_probability": 1.0, "intensity_shift_probability": 1.0},
    "inverted gamma of a range": {"gamma_inverted_probability": 1.0, "gamma_keeps": "range"},
}
EVERYTHING = AugmentConfig(
    affine_probability=0.7,
    quarter_turn_probability=(0.2, 0.2, 0.2),
    translate_voxel=(3.0, 2.0, 1.0),
    shear=0.1,
    elastic_probability=0.5,
    elastic_spacing_voxel=10.0,
    bias_probability=0.5,
    noise_probability=0.5,
    blur_probability=0.5,
    intensity_scale_probability=0.5,
    intensity_shift_probability=0.5,
    contrast_probability=0.5,
    low_resolution_probability=0.5,
    gamma_inverted_probability=0.5,
    gamma_probability=0.5,
    cutout_probability=0.5,
    cutout_boxes=2,
)


def draws(num):
    return [Draw(case_id=f"case{case}", case=case, epoch=0) for case in range(num)]


def make_volume(dtype="int16", num_channels=1, shape=(40, 36, 30), seed=0):
    rng = np.random.default_rng(seed)
    image = rng.normal(size=(num_channels, *shape))
    scaling = ()
    if dtype in ("int16", "uint8"):
        step = 1 / 1000 if dtype == "int16" else 1 / 30
        scaling = tuple(Scaling(slope=step * (c + 1), inter=0.1 * c - 0.2) for c in range(num_channels))
        limits = np.iinfo(dtype)
        image = np.clip(np.rint(image / step + (limits.max + limits.min) / 2), limits.min, limits.max)
    # Blocks of a few voxels, so that many eight neighbors agree and many do not.
    blocks = rng.integers(0, 5, [-(-n // 3) for n in shape]).astype(np.uint8)
    label = blocks.repeat(3, 0).repeat(3, 1).repeat(3, 2)[: shape[0], : shape[1], : shape[2]]
    return Volume(
        case_id="a",
        image=image.astype(dtype),
        label=np.ascontiguousarray(label),
        grid=Grid.of(image.shape, np.eye(4)),
        scaling=scaling,
    )


def some_regions(num, shape, patch, seed=0, beyond=6):
    rng = np.random.default_rng(seed)
    regions = []
    for _ in range(num):
        start = [int(rng.integers(-beyond, max(1, n - p + beyond))) for n, p in zip(shape, patch, strict=True)]
        regions.append(Region(tuple(start), tuple(a + p for a, p in zip(start, patch, strict=True))))
    return regions


def device_for(engine):
    if engine != "triton" or IS_INTERPRETED:
        return "cpu"
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return "cuda"


def source_of(volume, region, params, row):
    box = needed_box(params, row, region, volume.grid.shape)
    image, label = volume.read(box)
    return Source(image=image, label=label, start=box.start, scaling=volume.scaling)


def augmented(volume, regions, params, engine):
    device, shape = device_for(engine), regions[0].shape
    sources = [source_of(volume, region, params, row) for row, region in enumerate(regions)]
    image = torch.full((len(regions), len(volume.image), *shape), 777.0, device=device)
    label = torch.full((len(regions), *shape), 77, dtype=torch.uint8, device=device)
    augment(sources, regions, params, image, label, engine=engine)
    return image.cpu().numpy(), label.cpu().numpy()


def assert_parity(volume, regions, params, engine):
    image, label = augmented(volume, regions, params, engine)
    for row, region in enumerate(regions):
        wanted_image, wanted_label = augment_one(volume, region, params, row)
        np.testing.assert_allclose(image[row], wanted_image, rtol=0, atol=IMAGE_TOLERANCE * max(1, wanted_image.std()))
        differs = label[row] != wanted_label
        if differs.any():
            places = source_places(region, params, row)[:, differs]
            if params.votes:
                # Two classes whose shares are equal to float32's precision.
                assert differs.mean() < 1e-3
            else:
                from_tie = np.abs(places - np.floor(places) - 0.5).min(axis=0)
                assert from_tie.max() < TIE_VOXEL


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("change", EACH)
def test_each_change_agrees_with_the_reference(engine, change):
    config = NOTHING.model_copy(update=EACH[change])
    volume, patch, num = make_volume(num_channels=2), (20, 18, 16), 4
    if IS_INTERPRETED:
        patch, num = (10, 18, 16), 2
    params = sample(draws(num), seed=1, num_channels=2, patch_shape=patch, config=config, spacing_mm=(1.0, 1.0, 2.0))
    regions = some_regions(num, volume.grid.shape, patch)
    assert_parity(volume, regions, params, engine)
    # An effect that the reference lacked would be missed in no engine.
    nothing, is_changed = AugmentParams.identity(num, 2), False
    for row, region in enumerate(regions):
        (image, label), (same, same_label) = (augment_one(volume, region, made, row) for made in (params, nothing))
        is_changed |= bool(np.abs(image - same).max() > 10 * IMAGE_TOLERANCE or (label != same_label).any())
    assert is_changed == (change != "nothing")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("dtype", "num_channels"), [("int16", 1), ("uint8", 3), ("float32", 8), ("float16", 2), ("float64", 1), (">i2", 1)]
)
def test_all_changes_together_agree_for_every_stored_dtype(engine, dtype, num_channels):
    volume, patch = make_volume(dtype, num_channels), (5, 12, 17) if IS_INTERPRETED else (17, 24, 21)
    params = sample(draws(NUM_SAMPLES), seed=2, num_channels=num_channels, patch_shape=patch, config=EVERYTHING)
    assert_parity(volume, some_regions(NUM_SAMPLES, volume.grid.shape, patch), params, engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_images_are_given_out_in_the_format_that_is_asked_for(engine, dtype, channels_last):
    # Each change is the last one of a channel, and one channel has none.
    num_channels, patch, device = 7, (4, 3, 8), device_for(engine)
    volume = make_volume(num_channels=num_channels)
    cutout = NOTHING.model_copy(update={"cutout_probability": 1.0, "cutout_value": 0.3})
    params = sample(draws(2), seed=2, num_channels=num_channels, patch_shape=patch, config=cutout)
    params.is_warped[0], params.matrix[0] = True, np.diag([1.1, 0.9, 1.0])
    params.noise_std[1], params.scale[:, 1:3], params.blur_sigma_voxel[:, 2] = 0.2, 1.2, 0.8
    params.low_resolution[:, 3:5], params.contrast[:, 4:6] = 0.6, 1.3
    params.gamma_inverted[0, 5], params.gamma[:, 5:] = 1.2, 0.8
    regions = some_regions(2, volume.grid.shape, patch)
    sources = [source_of(volume, region, params, row) for row, region in enumerate(regions)]
    label = torch.empty((2, *patch), dtype=torch.uint8, device=device)
    plain, wanted_label = torch.full((2, num_channels, *patch), torch.nan, device=device), torch.empty_like(label)
    augment(sources, regions, params, plain, wanted_label, engine=engine)
    image = ImageFormat(dtype=dtype, channels_last=channels_last).empty(plain.shape, torch.device(device))
    image.fill_(torch.nan)
    strides = image.stride()
    augment(sources, regions, params, image, label, engine=engine)
    assert image.stride() == strides
    assert torch.equal(label, wanted_label)
    if IS_INTERPRETED and dtype == "bfloat16":
        # Triton's interpreter cuts bits off where a device rounds to the nearest number.
        torch.testing.assert_close(image.float(), plain, rtol=2**-7, atol=0)
    else:
        assert torch.equal(image, plain.to(image.dtype))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("keeps", ["moments", "range"])
def test_statistics_of_a_large_patch_agree(engine, keeps):
    # More voxels than the triton engine sums up in one program.
    volume, patch = make_volume(shape=(40, 40, 40)), (21, 20, 23)
    num = 2 if IS_INTERPRETED else 4
    along = (True, True, True) if keeps == "moments" else (False, True, True)
    params = AugmentParams.identity(num, 1, gamma_keeps_moments=keeps == "moments", coarse_axes=along)
    params.contrast[:-1], params.gamma_inverted[1:], params.gamma[num // 2 :] = 1.4, 0.8, 1.3
    params.low_resolution[num // 2 :] = 0.7
    assert_parity(volume, some_regions(num, volume.grid.shape, patch), params, engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("change", ["flip", "affine, voted"])
def test_planes_and_lines_longer_than_those_of_a_program_agree(engine, change):
    # Of the triton engine: 1024 voxels of a plane and 4 planes of a crop, tiles of 8 x 8 x 32 of a warp; and lines
    # that are a multiple of four voxels.
    volume, patch, num = make_volume(num_channels=2, shape=(40, 36, 50)), (9, 30, 40), 4
    if IS_INTERPRETED:
        patch, num = ((9, 9, 40), 1) if change == "affine, voted" else (patch, 2)
    config = NOTHING.model_copy(update=EACH[change])
    params = sample(draws(num), seed=3, num_channels=2, patch_shape=patch, config=config)
    assert_parity(volume, some_regions(num, volume.grid.shape, patch), params, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_channel_without_any_spread_stays_as_it_is(engine):
    volume = make_volume("float32").with_(image=np.full((1, 40, 36, 30), 3.5, np.float32))
    params = AugmentParams.identity(1, 1)
    params.contrast[:], params.gamma_inverted[:], params.gamma[:] = 1.5, 0.7, 1.4
    image, _ = augmented(volume, [Region((4, 4, 4), (16, 16, 16))], params, engine)
    np.testing.assert_allclose(image, 3.5, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_noise_is_that_of_its_definition_bit_for_bit(engine):
    volume = make_volume("float32", 2).with_(image=np.zeros((2, 40, 36, 30), np.float32))
    params = AugmentParams.identity(2, 2)
    params.noise_std[:], params.noise_seed[:] = 1.0, (5, 2**62 + 7)
    patch = (15, 14, 13)
    image, _ = augmented(volume, [Region((0, 0, 0), patch)] * 2, params, engine)
    for row, channel in np.ndindex(2, 2):
        wanted = standard_normal(int(params.noise_seed[row]), channel, 15 * 14 * 13).reshape(patch)
        np.testing.assert_array_equal(image[row, channel], wanted)


@pytest.mark.parametrize("engine", ENGINES)
def test_volumes_of_any_memory_order_and_dtype_may_share_a_batch(engine):
    volumes = [make_volume("int16"), make_volume("float32", seed=1), make_volume("uint8", seed=2)]
    volumes[0] = volumes[0].with_(image=np.asfortranarray(volumes[0].image), label=np.asfortranarray(volumes[0].label))
    volumes[1] = volumes[1].with_(image=np.ascontiguousarray(volumes[1].image[..., ::-1])[..., ::-1])
    regions = some_regions(3, volumes[0].grid.shape, (9, 10, 11))
    params = sample(draws(3), seed=3, num_channels=1, patch_shape=(9, 10, 11), config=EVERYTHING)
    device = device_for(engine)
    sources = [source_of(volumes[row], regions[row], params, row) for row in range(3)]
    image = torch.empty((3, 1, 9, 10, 11), device=device)
    label = torch.empty((3, 9, 10, 11), dtype=torch.uint8, device=device)
    augment(sources, regions, params, image, label, engine=engine)
    for row, (volume, region) in enumerate(zip(volumes, regions, strict=True)):
        wanted_image, _ = augment_one(volume, region, params, row)
        tolerance = IMAGE_TOLERANCE * max(1, wanted_image.std())
        np.testing.assert_allclose(image[row].cpu().numpy(), wanted_image, rtol=0, atol=tolerance)


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_volumes_that_stay_on_the_device_give_the_same_as_their_boxes(engine):
    device, patch = device_for(engine), (7, 10, 18)
    tier = DeviceTier(2**22, device)
    volumes = [make_volume("int16", 2), make_volume("float16", 2, seed=1), make_volume("int16", 2, seed=2)]
    for number, volume in enumerate(volumes[:2]):
        tier.put(str(number), volume)
    params = sample(draws(3), seed=5, num_channels=2, patch_shape=patch, config=EVERYTHING)
    regions = some_regions(3, volumes[0].grid.shape, patch)
    sources = [source_of(volumes[row], regions[row], params, row) for row in range(3)]
    resident = list(sources)
    for row in range(2):
        box = needed_box(params, row, regions[row], volumes[row].grid.shape)
        place = tier.get(str(row)).locate(box)
        resident[row] = ResidentSource(box=place, start=box.start, scaling=volumes[row].scaling)
    results = []
    for some in (sources, resident):
        image, label = torch.empty((3, 2, *patch), device=device), torch.empty((3, *patch), device=device).byte()
        augment(some, regions, params, image, label, engine=engine)
        results.append((image, label))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def thin_patches(test):
    """Axes of one voxel, which Triton's compiler takes for constants and its interpreter does not."""
    for patch in () if IS_INTERPRETED else ((1, 1, 1), (1, 9, 10), (9, 1, 10), (9, 10, 1)):
        test = example(shape=(8, 9, 7), patch=patch, seed=3, votes=True)(test)
    return test


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=3 if IS_INTERPRETED else 30)
@thin_patches
@given(
    shape=st.tuples(*[st.integers(1, 24)] * 3),
    patch=st.tuples(*[st.integers(1, 20)] * 3),
    seed=st.integers(0, 10_000),
    votes=st.booleans(),
)
def test_any_shape_agrees_inside_and_beyond_the_border(engine, shape, patch, seed, votes):
    # What depends on a channel's spread is for patches that have one.
    spatial = AugmentConfig.only(
        flip_probability=(0.5, 0.5, 0.5),
        quarter_turn_probability=(0.2, 0.2, 0.2),
        affine_probability=0.7,
        translate_voxel=(3.0, 2.0, 1.0),
        shear=0.1,
        elastic_probability=0.3,
        elastic_spacing_voxel=10.0,
        noise_probability=0.5,
        label_interpolation="vote" if votes else "nearest",
    )
    volume = make_volume("int16", 1, shape, seed)
    params = sample(draws(2), seed=seed, num_channels=1, patch_shape=patch, config=spatial)
    regions = some_regions(2, shape, patch, seed, beyond=12)
    assert_parity(volume, regions, params, engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("interpolation", ["nearest", "vote"])
def test_flipped_sides_have_the_labels_of_the_other_side_bit_for_bit(engine, interpolation):
    volume, patch, num = make_volume(), (9, 12, 16), 12
    if IS_INTERPRETED:
        patch, num = (3, 12, 16), 4
    config = AugmentConfig.only(
        flip_probability=(0.5, 0.5, 0.5),
        quarter_turn_probability=(0.2, 0.2, 0.2),
        affine_probability=0.5,
        label_interpolation=interpolation,
    )
    swapped = (0, 2, 1, 4, 3)
    drawn = {"seed": 6, "num_channels": 1, "patch_shape": patch, "config": config}
    params, plain = sample(draws(num), **drawn, swapped_classes=swapped), sample(draws(num), **drawn)
    assert not plain.is_swapped.any()
    assert 0 < params.is_swapped.sum() < num
    regions = some_regions(num, volume.grid.shape, patch)
    image, label = augmented(volume, regions, params, engine)
    same_image, unswapped = augmented(volume, regions, plain, engine)
    np.testing.assert_array_equal(image, same_image)
    for row, is_swapped in enumerate(params.is_swapped):
        wanted = np.array(swapped, dtype=np.uint8)[unswapped[row]] if is_swapped else unswapped[row]
        np.testing.assert_array_equal(label[row], wanted)
    assert_parity(volume, regions, params, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_patch_wholly_beyond_the_volume_is_empty(engine):
    volume = make_volume()
    regions = [Region((100, 0, 0), (110, 10, 10))] * 2
    params = AugmentParams.identity(2, 1)
    params.is_warped[1], params.matrix[1] = True, np.diag([1.1, 0.9, 1.0])
    params.shift[:] = 0.5
    image, label = augmented(volume, regions, params, engine)
    assert (image == 0.5).all()
    assert not label.any()


@pytest.mark.parametrize("engine", ENGINES)
def test_turned_back_and_forth_a_patch_is_what_it_was(engine):
    volume, patch = make_volume(), (16, 16, 16)
    regions = some_regions(1, volume.grid.shape, patch, beyond=0)
    still, turned = AugmentParams.identity(1, 1), AugmentParams.identity(1, 1)
    turned.is_warped[0], turned.matrix[0] = True, [[0, 1, 0], [-1, 0, 0], [0, 0, 1]]
    image, label = augmented(volume, regions, turned, engine)
    wanted_image, wanted_label = augmented(volume, regions, still, engine)
    np.testing.assert_allclose(np.rot90(image, -1, (2, 3)), wanted_image, atol=1e-6)
    np.testing.assert_array_equal(np.rot90(label, -1, (1, 2)), wanted_label)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("votes", [False, True])
def test_planes_that_turn_in_themselves_agree_from_the_first_to_the_last(engine, votes):
    volume, patch = make_volume("float32", 2, (9, 36, 30)), (9, 20, 18)
    params = AugmentParams.identity(2, 2, votes=votes)
    sine, cosine = 1.2 * np.sin(0.7), 1.2 * np.cos(0.7)
    params.is_warped[:], params.flips[1] = True, True
    params.matrix[:] = [[1, 0, 0], [0, cosine, -sine], [0, sine, cosine]]
    regions = [Region(start, tuple(np.add(start, patch).tolist())) for start in ((0, 5, 4), (-2, 9, 8))]
    assert_parity(volume, regions, params, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_threads_that_begin_at_once_fill_the_batches_that_one_thread_fills(engine):
    """Triton's compiler and its interpreter keep what they work on in one place for all threads."""
    volume, patch, num_threads = make_volume(num_channels=2), (4, 5, 9), 2 if IS_INTERPRETED else 8
    params = sample(draws(2), seed=6, num_channels=2, patch_shape=patch, config=EVERYTHING)
    regions = some_regions(2, volume.grid.shape, patch)
    begin = threading.Barrier(num_threads)

    def fill(_):
        begin.wait(HANGS_S)
        return augmented(volume, regions, params, engine)

    with ThreadPoolExecutor(num_threads) as pool:
        made = list(pool.map(fill, range(num_threads)))
    image, label = augmented(volume, regions, params, engine)
    for some_image, some_label in made:
        np.testing.assert_array_equal(some_image, image)
        np.testing.assert_array_equal(some_label, label)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_sample_does_not_depend_on_its_batch_nor_on_the_rest_of_the_volume(engine):
    volume, patch = make_volume(num_channels=2), (6, 9, 16) if IS_INTERPRETED else (18, 17, 16)
    params = sample(draws(5), seed=4, num_channels=2, patch_shape=patch, config=EVERYTHING)
    regions = some_regions(5, volume.grid.shape, patch)
    image, label = augmented(volume, regions, params, engine)
    again = [
        augmented(
            volume,
            [regions[row]],
            sample([draws(5)[row]], seed=4, num_channels=2, patch_shape=patch, config=EVERYTHING),
            engine,
        )
        for row in range(5)
    ]
    np.testing.assert_array_equal(image, np.concatenate([part for part, _ in again]))
    np.testing.assert_array_equal(label, np.concatenate([part for _, part in again]))


def test_engine_is_chosen_by_device_and_by_what_is_installed(monkeypatch):
    from voxelocity.data.augment import apply

    assert chosen_engine("auto", torch.device("cpu")) == "native"
    assert chosen_engine("torch", torch.device("cpu")) == "torch"
    assert chosen_engine("auto", torch.device("cuda")) == "triton"
    with pytest.raises(ConfigError, match="engine 'triton' fills batches on CUDA, not on cpu; choose engine: auto"):
        chosen_engine("triton", torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"engine 'native' cannot fill a batch on cuda; choose engine: auto"):
        chosen_engine("native", torch.device("cuda"))
    for engine, device, filled in (("auto", "cuda", "cuda"), ("native", "cuda", "cpu"), ("auto", "cpu", "cpu")):
        assert filling_device(engine, torch.device(device)).type == filled
    monkeypatch.setattr(apply, "has_loops", lambda: False)
    monkeypatch.setattr(apply, "why_not", lambda: "loops.so does not exist; build it with a C compiler: COMMAND")
    monkeypatch.setattr(apply, "has_triton", lambda: False)
    apply._warn_of_missing.cache_clear()
    assert chosen_engine("auto", torch.device("cpu")) == "torch"
    with pytest.warns(UserWarning, match=r"triton is not installed, so patches .* plain torch.*; install triton, or"):
        assert chosen_engine("auto", torch.device("cuda")) == "torch"
    for engine, device, cure in (
        ("native", "cpu", "build it with a C compiler: COMMAND"),
        ("triton", "cuda", "install"),
    ):
        with pytest.raises(ConfigError, match=f"'{engine}' needs .*{cure}.*, or choose engine: torch"):
            chosen_engine(engine, torch.device(device))
    monkeypatch.setattr(apply, "has_loops", lambda: True)
    with pytest.warns(UserWarning, match="triton is not installed, so patches are augmented on the CPU and not on"):
        assert filling_device("auto", torch.device("cuda")).type == "cpu"


def test_the_engine_of_an_earlier_version_is_the_one_that_took_its_place():
    assert AugmentConfig(engine="numba").engine == "native"


def test_scratch_of_a_whole_large_scan_is_not_kept(monkeypatch):
    from voxelocity.data.augment import native_engine

    monkeypatch.setattr(native_engine, "_LARGEST_KEPT_BYTES", 100)
    one, other = (native_engine.scratch("of this test", (101,), np.dtype(np.uint8)) for _ in range(2))
    assert not np.shares_memory(one, other)
    one, other = (native_engine.scratch("of this test", (99,), np.dtype(np.uint8)) for _ in range(2))
    assert np.shares_memory(one, other)


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize("interpolation", ["nearest", "vote"])
# Of 256 classes, only the ignored voxels are more than a byte holds.
@pytest.mark.parametrize("num_classes", [256, 1004])
def test_more_classes_than_a_byte_holds_are_moved_as_fewer_are(engine, interpolation, num_classes):
    volume, patch = make_volume(), (9, 12, 16)
    config = AugmentConfig.only(
        flip_probability=(0.5, 0.5, 0.5), affine_probability=0.5, label_interpolation=interpolation
    )
    drawn = {"seed": 6, "num_channels": 1, "patch_shape": patch, "config": config}
    few = sample(draws(NUM_SAMPLES), **drawn, swapped_classes=(0, 2, 1, 3, 4))
    one, other = num_classes - 3, num_classes - 2
    wide = [*range(num_classes)]
    wide[one], wide[other] = other, one
    many = sample(draws(NUM_SAMPLES), **drawn, swapped_classes=wide)
    assert 0 < many.is_swapped.sum() < NUM_SAMPLES
    regions = some_regions(NUM_SAMPLES, volume.grid.shape, patch)
    image, label = augmented(volume, regions, few, "torch")
    # Class 4 becomes the index of ignored voxels, which follows those of the classes.
    values = np.array([0, one, other, num_classes - 1, num_classes])
    moved = volume.with_(label=values[volume.label].astype(np.uint16))
    sources = [source_of(moved, region, many, row) for row, region in enumerate(regions)]
    found_image, found = torch.empty(image.shape), torch.empty(label.shape, dtype=torch.int32)
    augment(sources, regions, many, found_image, found, engine=engine)
    np.testing.assert_array_equal(found.numpy(), values[label])
    np.testing.assert_allclose(found_image.numpy(), image, atol=IMAGE_TOLERANCE * max(1, image.std()))
