"""Dice from pair counts, on tensors and on arrays."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from monai.metrics import compute_dice

from shared.gpu import nothing_waits
from voxelocity.metrics import DiceCounts
from voxelocity.metrics.dice import count_pairs, count_tables, dice_of_tables, merged_pairs
from voxelocity_observe.core.errors import ScanError

CLASSES = 4
LABELS = hnp.arrays(np.uint8, (2, 4, 3, 2), elements=st.integers(0, CLASSES - 1))


def one_hot(indices: np.ndarray) -> torch.Tensor:
    """(1, k, x, y, z)."""
    hot = torch.nn.functional.one_hot(torch.from_numpy(indices.astype(np.int64)), CLASSES)
    return hot.permute(3, 0, 1, 2)[None]


def dice(counts: DiceCounts, num_classes: int = CLASSES):
    return counts.dice_of([[index] for index in range(num_classes)])


def dice_of_arrays(prediction, truth, num_classes: int = CLASSES):
    pairs = count_pairs(prediction, truth, num_classes=num_classes)
    return dice_of_tables(merged_pairs(pairs, [[index] for index in range(num_classes)]))


def test_dice_of_a_known_pair():
    truth = torch.tensor([0, 1, 1, 1, 2, 0])
    prediction = torch.tensor([0, 1, 1, 2, 2, 1])
    counts = DiceCounts(num_classes=3)
    counts.add(prediction, truth)
    assert dice(counts, 3) == pytest.approx((2 / 3, 4 / 6, 2 / 3))


def test_class_in_neither_has_no_score_and_class_in_one_of_them_zero():
    counts = DiceCounts(num_classes=3)
    counts.add(torch.tensor([0, 1]), torch.tensor([0, 0]))
    assert dice(counts, 3)[1:] == (0.0, None)
    assert dice(DiceCounts(num_classes=2), 2) == (None, None)


@given(LABELS)
def test_tensors_arrays_and_monai_agree(pair):
    truth, prediction = pair
    counts = DiceCounts(num_classes=CLASSES)
    counts.add(torch.from_numpy(prediction), torch.from_numpy(truth))
    ours = dice(counts)
    assert dice_of_arrays(prediction, truth) == ours
    theirs = compute_dice(one_hot(prediction), one_hot(truth), include_background=True, ignore_empty=False)[0]
    in_truth = [index for index in range(CLASSES) if (truth == index).any()]
    # MONAI's rule is another where the truth is empty; ours follows from the definition, and is None where both are.
    assert [score is None for score in ours] == [not (pair == index).any() for index in range(CLASSES)]
    assert [ours[i] for i in in_truth] == pytest.approx([float(theirs[i]) for i in in_truth], abs=1e-6)


@given(LABELS)
def test_adding_in_parts_pools_to_the_dice_of_the_whole(pair):
    truth, prediction = torch.from_numpy(pair)
    parts, whole = DiceCounts(num_classes=CLASSES), DiceCounts(num_classes=CLASSES)
    for x in range(truth.shape[0]):
        parts.add(prediction[x], truth[x])
    whole.add(prediction, truth)
    assert dice(parts) == dice(whole)


def test_counting_in_slabs_is_counting_at_once(monkeypatch):
    rng = np.random.default_rng(2)
    truth, prediction = rng.integers(0, CLASSES, (2, 5, 6, 7), dtype=np.uint8)
    monkeypatch.setattr("voxelocity.metrics.dice._SLAB_VOXELS", 32)
    counts = DiceCounts(num_classes=CLASSES)
    counts.add(torch.from_numpy(prediction), torch.from_numpy(truth))
    assert dice(counts) == dice_of_arrays(prediction, truth)


def test_memory_order_and_dtype_do_not_matter():
    rng = np.random.default_rng(0)
    truth, prediction = rng.integers(0, CLASSES, (2, 5, 6, 7), dtype=np.uint8)
    expected = count_pairs(prediction, truth, num_classes=CLASSES)
    assert np.array_equal(count_pairs(np.asfortranarray(prediction), truth, num_classes=CLASSES), expected)
    counts = DiceCounts(num_classes=CLASSES)
    counts.add(torch.from_numpy(prediction).permute(2, 1, 0), torch.from_numpy(truth.astype(np.int64)).permute(2, 1, 0))
    assert dice(counts) == dice_of_arrays(prediction, truth)


def test_pair_counts_hold_every_voxel_once():
    rng = np.random.default_rng(1)
    truth, prediction = rng.integers(0, CLASSES, (2, 5, 6, 7), dtype=np.uint8)
    pairs = count_pairs(prediction, truth, num_classes=CLASSES)
    assert pairs.sum() == truth.size
    assert pairs[2, 3] == np.count_nonzero((truth == 2) & (prediction == 3))
    assert pairs.dtype == np.int64


def test_many_classes_do_not_overflow_the_code():
    truth = torch.full((3, 3, 3), 254, dtype=torch.uint8)
    counts = DiceCounts(num_classes=255)
    counts.add(truth, truth)
    assert dice(counts, 255)[254] == 1.0
    assert dice_of_arrays(truth.numpy() - 1, truth.numpy(), 255)[254] == 0.0


@pytest.mark.gpu
@pytest.mark.parametrize("num_classes", [2, CLASSES, 104, 255])
def test_device_counts_equal_host_counts_and_nothing_waits(num_classes):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    truth, prediction = torch.randint(0, num_classes, (2, 96, 96, 96), dtype=torch.uint8)
    # Mostly background in both, as in scans.
    truth[8:], prediction[10:] = 0, 0
    host, device = DiceCounts(num_classes=num_classes), DiceCounts(num_classes=num_classes)
    host.add(prediction, truth)
    on_device = prediction.cuda(), truth.cuda()
    with nothing_waits():
        device.add(*on_device)
    assert dice(device, num_classes) == dice(host, num_classes)


def test_different_shapes_are_refused():
    with pytest.raises(
        ValueError, match=r"prediction \(2,\) and truth \(3,\) differ in shape; bring both onto one grid"
    ):
        DiceCounts(num_classes=2).add(torch.zeros(2, dtype=torch.int64), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ScanError, match=r"prediction \(2,\) and truth \(3,\) differ in shape"):
        count_pairs(np.zeros(2, np.uint8), np.zeros(3, np.uint8), num_classes=2)


def test_index_without_a_class_is_named_with_its_side():
    fine, wrong = np.array([0, 1], np.uint8), np.array([0, 7], np.uint8)
    with pytest.raises(ScanError, match="the truth holds class index 7, but there are 2 classes"):
        count_pairs(fine, wrong, num_classes=2)
    with pytest.raises(ScanError, match="the prediction holds class index -1, but there are 2 classes"):
        count_pairs(np.array([0, -1]), fine, num_classes=2)


def test_many_classes_are_counted_one_by_one_as_few_are_in_pairs(monkeypatch):
    numbers = np.random.default_rng(0)
    truth, prediction = numbers.integers(0, 6, (2, 7, 8, 9)).astype(np.uint16)
    # The last one does not count.
    scored = [[index] for index in range(1, 5)]
    few = DiceCounts(num_classes=5, ignored=True)
    prediction = np.minimum(prediction, 4)
    few.add(torch.from_numpy(prediction.astype(np.int32)), torch.from_numpy(truth.astype(np.int32)))
    monkeypatch.setattr("voxelocity.metrics.dice.MAX_BYTE_CLASSES", 2)
    many = DiceCounts(num_classes=5, ignored=True)
    many.add(torch.from_numpy(prediction.astype(np.int32)), torch.from_numpy(truth.astype(np.int32)))
    assert many.dice_of(scored) == few.dice_of(scored)
    assert DiceCounts(num_classes=5).dice_of(scored) == (None,) * 4


def test_tables_of_many_classes_are_those_of_pairs(monkeypatch):
    numbers = np.random.default_rng(0)
    truth, prediction = numbers.integers(0, 6, (2, 7, 8, 9)).astype(np.uint16)
    scored = [[5], [1], [3]]
    expected = count_tables(prediction, truth, scored, num_classes=6)
    monkeypatch.setattr("voxelocity.metrics.dice.MAX_BYTE_CLASSES", 2)
    assert np.array_equal(count_tables(prediction, truth, scored, num_classes=6), expected)
    with pytest.raises(ScanError, match="holds class index 5, but there are 5 classes"):
        count_tables(prediction, truth, scored, num_classes=5)


def test_tensors_are_not_changed_by_counting():
    truth, prediction = torch.tensor([1, 2, 0], dtype=torch.int32), torch.tensor([1, 1, 0], dtype=torch.int32)
    DiceCounts(num_classes=3).add(prediction, truth)
    assert truth.tolist() == [1, 2, 0]
