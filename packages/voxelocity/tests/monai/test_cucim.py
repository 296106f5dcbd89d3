"""cuCIM's operations under MONAI's names: handed on where it is installed, and the same in torch where it is not."""

import inspect
import pickle
import sys
from types import ModuleType

import monai.transforms as mt
import numpy as np
import pytest
import torch
from monai.data.meta_tensor import MetaTensor

from voxelocity.monai import CuCIM, CuCIMD, CuCIMd, CuCIMDict, RandCuCIM, RandCuCIMD, RandCuCIMd, RandCuCIMDict, cucim
from voxelocity_observe.core.errors import InputError

RAMP = np.array([[[0.0, 1.0], [2.0, 3.0]]] * 3, np.float32)


@pytest.fixture(autouse=True)
def said(monkeypatch):
    times = []
    monkeypatch.setattr(cucim, "_say_that_cucim_is_missing", lambda: times.append(1))
    return times


@pytest.fixture
def installed(monkeypatch):
    """A cuCIM with one operation, which writes down its calls."""
    calls = []
    names = "cucim", "cucim.core", "cucim.core.operations", "cucim.core.operations.expose"
    for name in (*names, f"{names[-1]}.transform"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    module = sys.modules[f"{names[-1]}.transform"]
    module.blur = lambda *args, **kwargs: calls.append((args, kwargs)) or "blurred"
    module.image_flip = lambda *args, **kwargs: "flipped"
    return calls


def both(name, image, *args, seed=0, **kwargs):
    """The result for an array, which that for a tensor and for a batch must equal."""
    kind = RandCuCIM if "rand" in name or name == "color_jitter" else CuCIM

    def made():
        transform = kind(name, *args, **kwargs)
        if kind is RandCuCIM:
            transform.set_random_state(seed)
        return transform

    array, tensor = made()(image), made()(torch.from_numpy(image.copy()))
    assert isinstance(array, np.ndarray)
    assert type(tensor) is torch.Tensor
    assert array.dtype == tensor.numpy().dtype
    np.testing.assert_array_equal(array, tensor.numpy())
    if "flip" not in name and "rotate" not in name:
        np.testing.assert_array_equal(made()(np.stack([image] * 2))[1], array)
    return array


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(CuCIM, mt.CuCIM), (RandCuCIM, mt.RandCuCIM), (CuCIMd, mt.CuCIMd), (RandCuCIMd, mt.RandCuCIMd)],
)
def test_signatures_are_monais(ours, theirs):
    for method in ("__init__", "__call__"):
        one, other = (inspect.signature(getattr(owner, method)).parameters.values() for owner in (ours, theirs))
        assert [(p.name, p.kind, p.default) for p in one] == [(p.name, p.kind, p.default) for p in other]


def test_other_names_are_the_same_classes():
    assert CuCIMD is CuCIMDict is CuCIMd
    assert RandCuCIMD is RandCuCIMDict is RandCuCIMd


def test_flip_and_quarter_turns():
    np.testing.assert_array_equal(both("image_flip", RAMP, spatial_axis=-1), np.flip(RAMP, -1))
    np.testing.assert_array_equal(both("image_flip", RAMP, (1, 2)), np.flip(RAMP, (1, 2)))
    for k in range(-1, 5):
        turned = both("image_rotate_90", RAMP, k=k, spatial_axis=(-2, -1))
        np.testing.assert_array_equal(turned, np.rot90(RAMP, k, (-2, -1)))


@pytest.mark.parametrize("clip", [False, True])
def test_scaled_intensities_are_those_of_monais_transform(clip):
    values = {"a_min": 1.0, "a_max": 2.5, "b_min": -1.0, "b_max": 3.0, "clip": clip}
    expected = mt.ScaleIntensityRange(**values)(RAMP).numpy()
    np.testing.assert_allclose(both("scale_intensity_range", RAMP, **values), expected, rtol=1e-6)


def test_scaling_keeps_the_dtype_and_takes_parameters_in_cucims_order():
    image = np.arange(12, dtype=np.int16).reshape(1, 3, 4)
    scaled = both("scale_intensity_range", image, 110.0, 0.0, 11.0, 0.0)
    assert scaled.dtype == np.int16
    np.testing.assert_array_equal(scaled, image * 10)


def test_normalized_intensities():
    np.testing.assert_allclose(both("normalize_data", RAMP, 10.0, 1.0, 3.0), 5.0 * (RAMP - 1), rtol=1e-6)
    expected = 5.0 * np.arctan(RAMP - 1)
    np.testing.assert_allclose(both("normalize_data", RAMP, 10.0, 1.0, 3.0, type="atan"), expected, rtol=1e-6)


def zoom_reference(image, factors):
    """Means over the covered voxels, then the frame cut out or the edges repeated."""
    channels, *shape = image.shape
    size = [int(n * f) for n, f in zip(shape, factors, strict=True)]
    zoomed = np.zeros((channels, *size))
    for i, j in np.ndindex(*size):
        rows = slice(i * shape[0] // size[0], -(-(i + 1) * shape[0] // size[0]))
        columns = slice(j * shape[1] // size[1], -(-(j + 1) * shape[1] // size[1]))
        zoomed[:, i, j] = image[:, rows, columns].mean((1, 2))
    half = [abs(n - m) // 2 for n, m in zip(shape, size, strict=True)]
    if size[0] > shape[0]:
        return zoomed[:, half[0] : half[0] + shape[0], half[1] : half[1] + shape[1]]
    pad = [(h, n - m - h) for h, n, m in zip(half, shape, size, strict=True)]
    return np.pad(zoomed, [(0, 0), *pad], mode="edge")


@pytest.mark.parametrize("factors", [(0.5, 0.5), (0.7, 0.9), (1.3, 1.2), (2.4, 3.0)])
def test_zoom_takes_means_in_the_same_frame(factors):
    image = np.random.default_rng(0).random((2, 11, 13), np.float32)
    np.testing.assert_allclose(both("zoom", image, factors), zoom_reference(image, factors), atol=1e-6)


def test_zoom_that_changes_no_size_gives_the_image():
    assert np.shares_memory(CuCIM("zoom", (1.05, 1.0))(RAMP), RAMP)


def test_random_operations_draw_what_their_state_says():
    image = np.random.default_rng(0).random((3, 20, 30), np.float32)
    np.testing.assert_array_equal(both("rand_image_flip", image, (1,), prob=1.0), np.flip(image, 1))
    np.testing.assert_array_equal(both("rand_image_rotate_90", image, (1, 2), 1.0, 1), np.rot90(image, 1, (1, 2)))
    turns = [both("rand_image_rotate_90", image, (1, 2), 1.0, seed=seed) for seed in range(12)]
    found = {next(k for k in range(4) if np.array_equal(turn, np.rot90(image, k, (1, 2)))) for turn in turns}
    assert found == {1, 2, 3}
    state = np.random.RandomState(3)
    assert state.rand() < 0.99
    factor = state.uniform(0.4, 0.6)
    zoomed = both("rand_zoom", image, 0.4, 0.6, 0.99, seed=3)
    np.testing.assert_allclose(zoomed, zoom_reference(image, (factor, factor)), atol=1e-6)
    each = both("rand_zoom", image, (0.5, 0.8), (0.5, 0.8), 1.0)
    np.testing.assert_allclose(each, zoom_reference(image, (0.5, 0.8)), atol=1e-6)


@pytest.mark.parametrize("prob", [0.0, 0.25, 1.0])
def test_operations_are_applied_with_their_probability(prob):
    for options in ({"prob": prob}, {"prob": 1.0, "apply_prob": prob}):
        transform = RandCuCIM("rand_image_flip", -1, **options)
        transform.set_random_state(0)
        share = np.mean([not np.array_equal(transform(RAMP), RAMP) for _ in range(400)])
        assert share == pytest.approx(prob, abs=0.08)


def test_colors_without_change_stay_and_come_back_as_bytes_or_floats():
    for dtype in (np.uint8, np.float32):
        image = RAMP.astype(dtype)
        changed = both("color_jitter", image, 0.0, 0.0, 0.0, 0.0)
        assert changed.dtype == dtype
        np.testing.assert_array_equal(changed, image)


def color(*rgb):
    return np.array(rgb, np.uint8).reshape(3, 1, -1)


@pytest.mark.parametrize(
    ("options", "image", "expected"),
    [
        ({"brightness": (1.5, 1.5)}, color(10, 100, 200), color(15, 150, 255)),
        ({"saturation": (0.0, 0.0)}, color(255, 0, 0), color(76, 76, 76)),
        ({"contrast": (0.5, 0.5)}, color([0, 255], [0, 255], [0, 255]), color([64, 191], [64, 191], [64, 191])),
        ({"hue": (1 / 3, 1 / 3)}, color(255, 0, 0), color(0, 255, 0)),
        ({"hue": (-1 / 3, -1 / 3)}, color(200, 0, 0), color(0, 0, 200)),
        ({"hue": (0.25, 0.25)}, color(90, 90, 90), color(0, 0, 0)),
    ],
)
def test_colors_change_as_known(options, image, expected):
    np.testing.assert_allclose(both("color_jitter", image, **options).astype(int), expected.astype(int), atol=5)


def test_metadata_come_back():
    affine = torch.diag(torch.tensor([2.0, 2.0, 2.0, 1.0]))
    flipped = CuCIM("image_flip", -1)(MetaTensor(torch.from_numpy(RAMP), affine=affine))
    assert isinstance(flipped, MetaTensor)
    assert torch.equal(flipped.affine.float(), affine)
    np.testing.assert_array_equal(flipped.numpy(), np.flip(RAMP, -1))


def test_dictionary_forms_change_their_keys_alone():
    data = {"image": RAMP, "label": RAMP, "other": RAMP}
    changed = CuCIMd(["image", "label", "none"], "image_flip", True, -1)(data)
    np.testing.assert_array_equal(changed["label"], np.flip(RAMP, -1))
    assert changed["other"] is RAMP
    assert np.array_equal(data["image"], RAMP)
    with pytest.raises(KeyError, match="none"):
        CuCIMd("none", "image_flip", spatial_axis=-1)(data)


def test_random_dictionary_form_is_seeded_by_its_chain():
    def run(seed):
        chain = mt.Compose([RandCuCIMd("image", "rand_image_flip", spatial_axis=-1, prob=0.5)])
        chain.set_random_state(seed)
        return [np.array_equal(chain({"image": RAMP})["image"], RAMP) for _ in range(16)]

    assert run(1) == run(1) != run(2)


def test_transforms_are_distinguished_from_deterministic_ones_and_pickled():
    assert isinstance(RandCuCIM("rand_zoom"), mt.RandomizableTrait)
    assert isinstance(RandCuCIMd("image", "rand_zoom"), mt.RandomizableTrait)
    assert not isinstance(CuCIM("zoom", (2, 2)), mt.RandomizableTrait)
    again = pickle.loads(pickle.dumps(CuCIM("image_flip", -1)))
    np.testing.assert_array_equal(again(RAMP), np.flip(RAMP, -1))


def test_cucim_itself_gets_arrays_where_it_is_installed(installed, said):
    assert CuCIM("blur", 3, sigma=2)(RAMP) == "blurred"
    assert RandCuCIMd("image", "blur", False, 4)({"image": "cupy's"}) == {"image": "blurred"}
    assert installed[0][0][0] is RAMP
    assert [(args[1:], kwargs) for args, kwargs in installed] == [((3,), {"sigma": 2}), ((4,), {})]
    np.testing.assert_array_equal(CuCIM("image_flip", -1)(torch.from_numpy(RAMP)).numpy(), np.flip(RAMP, -1))
    assert not said


def test_what_the_installed_cucim_has_not_or_takes_arrays_for_is_refused(installed):
    with pytest.raises(InputError, match="'sharpen' is not an operation of cuCIM; choose from blur, image_flip"):
        CuCIM("sharpen")
    with pytest.raises(InputError, match="'blur' takes only arrays, not tensors; put ToCupy before it"):
        CuCIM("blur")(torch.from_numpy(RAMP))


def test_missing_cucim_is_said_once(monkeypatch):
    monkeypatch.undo()
    cucim._say_that_cucim_is_missing.cache_clear()
    with pytest.warns(
        UserWarning, match="cucim and cupy are not installed, so its operations run in torch"
    ) as messages:
        mt.Compose([CuCIM("image_flip", -1), CuCIM("zoom", (0.5, 0.5))])(RAMP)
    assert len(messages) == 1


@pytest.mark.parametrize(
    ("name", "args", "image", "named"),
    [
        (
            "rand_color_jitter",
            (),
            RAMP,
            "'rand_color_jitter' is not an operation of cuCIM; choose from color_jitter",
        ),
        ("zoom", ((0.5, 0.5),), RAMP[0], r"zoom: an image has shape \(2, 2\); it must be \(c, h, w\)"),
        ("zoom", ((0.5, 2.0),), RAMP, r"zoom: factors \(0.5, 2.0\) make \(1, 4\) of \(2, 2\); both axes must grow or"),
        ("rand_zoom", (0.5, (1.0, 1.0), 1.0), RAMP, "must be both numbers or both sequences"),
        ("scale_intensity_range", (1.0, 0.0, 2.0, 2.0), RAMP, "a_min and a_max are both 2.0; give a range"),
        ("normalize_data", (1.0, 2.0, 2.0), RAMP, "min_value and max_value are both 2.0; give a range"),
        ("normalize_data", (1.0, 0.0, 2.0, "log"), RAMP, "type 'log' is not known; choose 'range' or 'atan'"),
        ("color_jitter", (-1.0,), RAMP, "brightness is -1.0; a single number must be 0 or more"),
        ("color_jitter", (0, 0, 0, (-0.6, 0.1)), RAMP, r"hue \(-0.6, 0.1\) is not valid; choose from -0.5 to 0.5, low"),
        ("color_jitter", (0.5,), RAMP[:1], r"image shape \(1, 2, 2\) lacks the three channels of a color image"),
        ("image_flip", (-1,), "text", "data is str; it must be an array or a tensor"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(name, args, image, named):
    with pytest.raises(InputError, match=named):
        CuCIM(name, *args)(image)


def test_probability_out_of_range_is_refused():
    with pytest.raises(InputError, match=r"apply_prob is 1\.5; choose from 0 to 1"):
        RandCuCIM("rand_zoom", apply_prob=1.5)


def test_a_range_that_whole_numbers_cannot_hold_is_warned_of_once():
    to_unit = {"a_min": 0.0, "a_max": 255.0, "b_min": -1.0, "b_max": 1.0}
    image = np.arange(48, dtype=np.uint8).reshape(3, 4, 4) * 5
    for kind in (CuCIM, RandCuCIM):
        transform = kind("scale_intensity_range", **to_unit)
        with pytest.warns(
            UserWarning, match=r"uint8 cannot hold values from -1 to 1.*CastToTyped\(keys, torch.float32"
        ):
            transform(torch.from_numpy(image))
        transform(torch.from_numpy(image))
    # As the warning says, and ranges that fit.
    cast = mt.CastToTyped("image", torch.float32)({"image": image})
    scaled = CuCIMd("image", "scale_intensity_range", **to_unit)(cast)["image"]
    assert (float(scaled.min()), round(float(scaled.max()), 3)) == (-1.0, round(235 / 127.5 - 1, 3))
    CuCIM("scale_intensity_range", **{**to_unit, "b_min": 0.0, "b_max": 255.0})(image)
    CuCIM("image_flip", spatial_axis=-1)(image)
