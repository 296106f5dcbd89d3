from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from scipy.spatial.transform import Rotation

from shared.examples import examples
from voxelocity.core.volume import Grid, Volume
from voxelocity.data.prepare import (
    Preparation,
    PrepareConfig,
    Restoration,
    is_resampled,
    kept_largest,
    labels_record,
    restore_labels,
    restore_probabilities,
)

PLAIN = {"crop": "nonzero", "intensity": {"mode": "none"}}


def _dice(one: np.ndarray, other: np.ndarray) -> float:
    return 2 * int((one & other).sum()) / int(one.sum() + other.sum())


def _one_hot(label: np.ndarray, num_classes: int) -> np.ndarray:
    return np.stack([label == k for k in range(num_classes)]).astype(np.float32)


def _blobs(shape: tuple[int, int, int], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    index = np.stack(np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij"))
    label = np.zeros(shape, np.uint8)
    for k in (1, 2):
        center = rng.uniform(-0.3, 0.3, 3)[:, None, None, None]
        label[((index - center) ** 2).sum(0) < 0.3 / k] = k
    return label


@given(
    shape=st.tuples(*[st.integers(1, 7)] * 3),
    margin=st.integers(0, 2),
    num_classes=st.integers(1, 5),
    seed=st.integers(0, 9999),
)
def test_turning_and_cropping_is_undone_exactly(shape, margin: int, num_classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    affine = np.eye(4)
    affine[:3, :3] = Rotation.random(rng=rng).as_matrix() @ np.diag(rng.choice([-1.0, 1.0], 3) * rng.uniform(0.5, 3, 3))
    label = (rng.integers(0, num_classes, shape) * (rng.random(shape) < 0.2)).astype(np.uint8)
    image = (label > 0).astype(np.int16)[np.newaxis]
    scan = Volume(case_id="a", image=image, label=label, grid=Grid.of(shape, affine))
    prepared = Preparation(PrepareConfig.parse({**PLAIN, "margin_voxel": margin}))(scan)
    restored = restore_labels(prepared.label, prepared.trace)
    assert np.array_equal(restored, label)
    assert restored.dtype == np.uint8
    assert restored.flags.c_contiguous
    from_scores = restore_probabilities(_one_hot(prepared.label, num_classes), prepared.trace)
    assert np.array_equal(from_scores, label)
    assert from_scores.dtype == np.uint8


@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (0.8, 1.7, 2.0), (2.1, 2.1, 2.1)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_resampling_is_undone_nearly(make_volume, oblique: np.ndarray, spacing, seed: int) -> None:
    label = _blobs((48, 40, 22), seed)
    image = ndimage.binary_dilation(label > 0, iterations=2).astype(np.int16)
    prepared = Preparation(PrepareConfig.parse({**PLAIN, "spacing_mm": spacing}))(make_volume(image, oblique, label))
    assert [record["step"] for record in prepared.trace] == ["orient", "crop", "resample"]
    nearest = restore_labels(prepared.label, prepared.trace)
    linear = restore_probabilities(_one_hot(prepared.label, 3), prepared.trace)
    assert nearest.shape == linear.shape == label.shape
    for k in (1, 2):
        assert _dice(nearest == k, label == k) > 0.9
        assert _dice(linear == k, label == k) > 0.93
    assert not linear[image == 0].any()


@given(seed=st.integers(0, 99), num_classes=st.integers(1, 6))
def test_running_choice_equals_argmax(seed: int, num_classes: int) -> None:
    scores = np.random.default_rng(seed).integers(0, 4, (num_classes, 3, 4, 5)).astype(np.float32)
    before = scores.copy()
    assert np.array_equal(restore_probabilities(scores, ()), scores.argmax(0))
    assert np.array_equal(scores, before)


def test_running_choice_equals_argmax_of_everything_interpolated(make_volume, oblique: np.ndarray) -> None:
    scan = make_volume(np.ones((9, 8, 7), np.int16), oblique)
    config = PrepareConfig.parse({"orientation": "keep", "intensity": {"mode": "none"}, "spacing_mm": (1.0, 1.0, 1.0)})
    prepared = Preparation(config)(scan)
    scores = np.random.default_rng(0).random((4, *prepared.grid.shape)).astype(np.float32)
    index = np.stack([*np.meshgrid(*(np.arange(n) for n in scan.grid.shape), indexing="ij"), np.ones(scan.grid.shape)])
    at = np.tensordot(np.linalg.inv(prepared.grid.matrix) @ scan.grid.matrix, index, 1)[:3]
    peer = np.stack([ndimage.map_coordinates(c, at, order=1, mode="nearest") for c in scores])
    assert np.array_equal(restore_probabilities(scores, prepared.trace), peer.argmax(0))


def test_half_precision_scores_are_accepted() -> None:
    scores = np.zeros((2, 2, 2, 2), np.float16)
    scores[1, 0] = scores[0, 1] = 1
    trace = ({"step": "resample", "shape": [4, 2, 2], "new_shape": [2, 2, 2], "step_voxel": [2.0, 1.0, 1.0]},)
    assert restore_probabilities(scores, trace)[:, 0, 0].tolist() == [1, 1, 0, 0]


def test_nearest_repeats_every_voxel_equally_often() -> None:
    trace = ({"step": "resample", "shape": [6, 1, 1], "new_shape": [3, 1, 1], "step_voxel": [2.0, 1.0, 1.0]},)
    assert restore_labels(np.array([3, 4, 5], np.uint8).reshape(3, 1, 1), trace).ravel().tolist() == [3, 3, 4, 4, 5, 5]


def test_interpolated_numbers_of_classes_are_rounded_halves_down() -> None:
    positions = [[0.0, 0.4, 0.5, 0.6, 1.0, 1.25], [0.0], [0.0]]
    record = {"step": "resample", "shape": [6, 1, 1], "new_shape": [3, 1, 1], "positions": positions}
    labels = np.array([0, 1, 3], np.uint8).reshape(3, 1, 1)
    assert restore_labels(labels, ({**record, "interpolates_labels": True},)).ravel().tolist() == [0, 0, 0, 1, 1, 1]
    assert restore_labels(labels, (record,)).ravel().tolist() == [0, 0, 1, 1, 1, 1]


def test_classes_are_brought_back_where_the_trace_says_so() -> None:
    record = {"step": "resample", "shape": [4, 2, 2], "new_shape": [2, 2, 2], "step_voxel": [2.0, 1.0, 1.0]}
    trace = (record, labels_record([2, 5]))
    assert not is_resampled(trace)
    assert kept_largest(trace) == (2, 5)
    assert kept_largest((record,)) == kept_largest(()) == ()
    labels = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
    assert np.array_equal(restore_labels(labels, trace), labels.repeat(2, axis=0))


@pytest.mark.data
@pytest.mark.parametrize(
    ("image", "label"),
    [
        ("small_ct_mr_samples/totalseg_ct/image.nii.gz", "small_ct_mr_samples/totalseg_ct/label_auto.nii.gz"),
        ("ms_multimodal/imagesTr/ms_patient19_0000.nii.gz", "ms_multimodal/labelsTr/ms_patient19.nii.gz"),
    ],
)
def test_real_labels_come_back_exactly_without_resampling(load, image: str, label: str) -> None:
    scan = load(image, label)
    prepared = Preparation(PrepareConfig.parse({**PLAIN, "dtype": "float32"}))(scan)
    lost = int((scan.label > 0).sum()) - int((prepared.label > 0).sum())
    assert lost == 0
    assert np.array_equal(restore_labels(prepared.label, prepared.trace), scan.label)


@pytest.mark.data
def test_real_label_comes_back_nearly_after_resampling(load) -> None:
    name = "hippocampus_001.nii.gz"
    scan = load(f"hippocampus/imagesTr/{name}", f"hippocampus/labelsTr/{name}")
    prepared = Preparation(PrepareConfig.parse({"spacing_mm": (0.7, 0.7, 0.8)}))(scan)
    restored = restore_probabilities(_one_hot(prepared.label, 3), prepared.trace)
    assert restored.shape == scan.grid.shape
    for k in (1, 2):
        assert _dice(restored == k, scan.label == k) > 0.97


@given(
    shape=st.tuples(*[st.integers(1, 12)] * 3),
    spacing=st.tuples(*[st.sampled_from([0.4, 1.0, 1.3, 2.7])] * 3),
    axis=st.integers(0, 2),
    cuts=st.lists(st.integers(1, 11), max_size=4, unique=True),
    num_threads=st.integers(1, 2),
    slab_values=st.sampled_from([50, 1 << 20]),
)
def test_slab_by_slab_is_as_from_the_whole(shape, spacing, axis, cuts, num_threads, slab_values) -> None:
    config = PrepareConfig.parse({"intensity": {"mode": "none"}, "spacing_mm": spacing})
    scan = Volume(case_id="a", image=np.ones((1, *shape), np.int16), label=None, grid=Grid.of(shape, np.eye(4)))
    prepared = Preparation(config)(scan)
    scores = np.random.default_rng(0).random((3, *prepared.grid.shape), dtype=np.float32)
    whole = restore_probabilities(scores, prepared.trace)
    num = prepared.grid.shape[axis]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("voxelocity.data.prepare.restore._SLAB_VALUES", slab_values)
        restoration = Restoration(prepared.trace, prepared.grid.shape, num_threads=num_threads)
        start = 0
        for stop in [*sorted(cut for cut in cuts if cut < num), num]:
            slab = scores.take(range(start, stop), axis=1 + axis)
            restoration.add(slab, start=tuple(start if number == axis else 0 for number in range(3)))
            start = stop - 1
        assert np.array_equal(restoration.result(), whole)


def test_the_way_back_takes_no_volume_of_floats(make_volume) -> None:
    shape = (150, 128, 128)
    config = PrepareConfig.parse({"intensity": {"mode": "none"}, "spacing_mm": (2.0, 2.0, 2.0)})
    prepared = Preparation(config)(make_volume(np.ones(shape, np.int16)))
    scores = np.random.default_rng(0).random((3, *prepared.grid.shape), dtype=np.float32)
    tracemalloc.start()
    try:
        restored = restore_probabilities(scores, prepared.trace)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert restored.shape == shape
    assert peak_bytes < 3.5 * restored.nbytes


@given(
    shape=st.tuples(*[st.integers(1, 40)] * 3),
    spacing=st.tuples(*[st.sampled_from([0.4, 1.0, 1.3, 2.7])] * 3),
    num_scores=st.integers(1, 6),
    sharpness=st.sampled_from([0.0, 1.0, 30.0]),
    is_region=st.booleans(),
    seed=st.integers(0, 9999),
)
@settings(max_examples=examples(60))
def test_compiled_classes_are_those_of_plain_interpolation(
    shape, spacing, num_scores, sharpness, is_region, seed
) -> None:
    rng = np.random.default_rng(seed)
    config = PrepareConfig.parse({"intensity": {"mode": "none"}, "spacing_mm": spacing})
    scan = Volume(case_id="a", image=np.ones((1, *shape), np.int16), label=None, grid=Grid.of(shape, np.eye(4)))
    prepared = Preparation(config)(scan)
    # Smooth scores leave blocks with one class, noise leaves none, and zeros are ties everywhere.
    scores = rng.standard_normal((num_scores, *prepared.grid.shape)).astype(np.float32)
    scores = sharpness * ndimage.gaussian_filter(scores, (0, 4, 4, 4) if sharpness > 1 else 0)
    order = tuple(int(index) for index in rng.permutation(num_scores) + 1) if is_region else ()
    found = []
    for engine in ("auto", "numpy"):
        restoration = Restoration(prepared.trace, prepared.grid.shape, region_order=order, engine=engine)
        restoration.add(scores)
        found.append(restoration.result())
    # Both round, in another order: only where two classes are equal to a millionth may the results differ.
    assert (found[0] != found[1]).sum() <= (0 if sharpness == 0.0 else 1 + found[0].size // 10_000)


def test_a_voxel_takes_the_last_region_it_is_inside(make_volume) -> None:
    scan = make_volume(np.ones((7, 1, 1), np.int16))
    prepared = Preparation(PrepareConfig.parse({"intensity": {"mode": "none"}, "spacing_mm": (2.0, 1.0, 1.0)}))(scan)
    outer, inner = np.array([-4, 4, 4, 4], np.float32), np.array([-9, -9, -1, 9], np.float32)
    restoration = Restoration(prepared.trace, prepared.grid.shape, region_order=(2, 1))
    restoration.add(np.stack([outer, inner]).reshape(2, 4, 1, 1))
    # Voxels 0 to 6 lie at 0, 0.5, 1, ... on the prepared axis; a logit of 0 is a probability of 0.5, not above it.
    assert restoration.result().ravel().tolist() == [0, 0, 2, 2, 2, 1, 1]


@pytest.mark.parametrize("is_softmax", [True, False])
def test_more_classes_than_a_byte_holds_are_restored_as_fewer_are(is_softmax):
    rng = np.random.default_rng(0)
    shape, first = (6, 7, 8), 297
    trace = [{"step": "resample", "shape": [11, 6, 9], "new_shape": list(shape), "step_voxel": [1.9, 0.8, 1.1]}]
    few = rng.normal(size=(3, *shape)).astype(np.float32)
    many = np.full((first + 3, *shape), -60.0, np.float32)
    many[first:] = few
    weights = rng.uniform(0.5, 2.0, shape).astype(np.float32)
    found = []
    for scores in (few, many):
        restoration = Restoration(trace, shape, is_softmax=is_softmax, num_threads=2)
        restoration.add(scores * weights, weights_xyz=weights)
        found.append(restoration.result())
    assert found[1].dtype == np.uint16
    assert (found[1] == found[0].astype(int) + first).mean() > 0.999
