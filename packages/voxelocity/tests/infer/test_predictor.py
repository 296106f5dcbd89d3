"""Scans through a network: what shares its passes, and what becomes of the others when one scan is broken."""

import weakref
from collections import deque

import nibabel as nib
import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shared.small_predictor import predictor, scans
from voxelocity.core.volume import Grid, Volume
from voxelocity_observe.core.errors import ScanError


def volume(num_channels):
    image = np.zeros((num_channels, 8, 8, 8), np.float32)
    return Volume(case_id="x", image=image, label=None, grid=Grid.of((8, 8, 8), np.eye(4)))


@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("broken", [0, 4, 5])
def test_every_case_before_a_broken_one_is_given_before_its_error(tmp_path, broken, num_threads):
    refs = scans(tmp_path, 6)
    alone = [next(predictor().stream([ref], num_threads=0)).classes for ref in refs[:broken]]
    refs[broken].images[0].write_bytes(refs[broken].images[0].read_bytes()[:-100])
    given = []
    with pytest.raises(ScanError, match=rf"case 'case_{broken}': .* the file is truncated"):
        given.extend(predictor().stream(refs, num_threads=num_threads))
    assert [scan.case_id for scan, *_ in given] == [f"case_{index}" for index in range(broken)]
    for (_, prediction, *_), expected in zip(given, alone, strict=True):
        # Passes of another number of windows may round another way where both classes are equally likely.
        assert (prediction == expected).mean() > 0.999


def test_a_scan_of_several_windows_before_a_broken_one_is_given_too(tmp_path):
    refs = scans(tmp_path, 2, shape=(20, 8, 8))
    (expected,) = [prediction.classes for prediction in predictor(batch_size=16).stream(refs[:1], num_threads=0)]
    refs[1].images[0].write_bytes(b"no scan")
    stream = predictor(batch_size=16).stream(refs, num_threads=0)
    scan, prediction, seconds, *_ = next(stream)
    assert scan.case_id == "case_0"
    np.testing.assert_array_equal(prediction, expected)
    assert list(seconds) == ["decode", "prepare", "network", "blend", "restore"]
    assert all(stage_s > 0.0 for stage_s in seconds.values())
    with pytest.raises(ScanError, match=r"case_1\.nii\.gz: this is not a NIfTI file"):
        next(stream)


@pytest.mark.parametrize(
    ("channels", "num_found", "text"),
    [
        (
            ("CT",),
            2,
            r"has 2 channels, but the network was trained on 1 \(CT\); give that channel alone, as a 3-D file, "
            r"or choose one of several volumes by --volume",
        ),
        (
            ("T1", "T2"),
            1,
            r"has 1 channel, but the network was trained on 2 \(T1, T2\); give these in this order, in one 4-D file or "
            r"as the files CASE_0000\.nii\.gz to CASE_0001\.nii\.gz",
        ),
    ],
)
def test_a_scan_of_other_channels_is_refused(channels, num_found, text):
    with pytest.raises(ScanError, match=rf"^infer: case 'x' {text}$"):
        predictor(channels=channels).predict(volume(num_found))


@pytest.mark.parametrize("num_threads", [0, 2])
def test_cases_that_cannot_be_predicted_are_left_out_and_named_where_that_is_asked_for(tmp_path, num_threads):
    refs = scans(tmp_path, 6)
    expected = {prediction.scan.case_id: prediction.classes for prediction in predictor().stream(refs, num_threads=0)}
    refs[1].images[0].write_bytes(b"no scan")
    scan_of_other_channels = np.zeros((8, 8, 8, 2), np.float32)
    nib.save(nib.Nifti1Image(scan_of_other_channels, np.eye(4)), refs[3].images[0])
    failed = []
    stream = predictor().stream(refs, num_threads=num_threads, on_failure=lambda *failure: failed.append(failure))
    given = {prediction.scan.case_id: prediction.classes for prediction in stream}
    assert list(given) == ["case_0", "case_2", "case_4", "case_5"]
    assert all((given[case] == expected[case]).mean() > 0.999 for case in given)
    assert [case for case, _ in failed] == ["case_1", "case_3"]
    assert "is not a NIfTI file" in str(failed[0][1])
    assert "2 channels" in str(failed[1][1])


def test_a_prediction_that_is_not_finite_is_an_error_that_names_its_case(tmp_path, monkeypatch):
    refs = scans(tmp_path, 3, shape=(20, 8, 8))
    voxels = np.random.default_rng(0).standard_normal((20, 8, 8)).astype(np.float32)
    voxels[3, 3, 3] = 5_000.0
    nib.save(nib.Nifti1Image(voxels, np.eye(4)), refs[1].images[0])
    predicts, given = predictor(), []
    forward = predicts._forward
    monkeypatch.setattr(
        predicts, "_forward", lambda windows: forward(windows).masked_fill(windows[:, :1] > 20.0, torch.nan)
    )
    with pytest.raises(ScanError, match=r"^infer: case 'case_1': the network returned NaN or infinity"):
        given.extend(predicts.stream(refs, num_threads=0))
    assert [scan.case_id for scan, *_ in given] == ["case_0"]
    failed = []
    stream = predicts.stream(refs, num_threads=0, on_failure=lambda case, error: failed.append((case, str(error))))
    assert [scan.case_id for scan, *_ in stream] == ["case_0", "case_2"]
    assert [case for case, _ in failed] == ["case_1"]
    assert failed[0][1].startswith("infer: case 'case_1': the network returned NaN")
    volumes = [volume(1).with_(image=voxels[None], case_id="on the way")]
    with pytest.raises(ScanError, match="case 'on the way': the network returned NaN"):
        next(predicts.predict_prepared(volumes))


@pytest.mark.parametrize("spacing_mm", ["keep", [1.5, 1.0, 2.0]])
def test_putting_back_in_a_second_thread_gives_the_same(tmp_path, spacing_mm):
    refs = scans(tmp_path, 4, shape=(14, 9, 8))
    plain, behind = predictor(spacing_mm=spacing_mm), predictor(spacing_mm=spacing_mm)
    behind._restores_behind = True
    both = zip(plain.stream(refs, num_threads=2), behind.stream(refs, num_threads=2), strict=True)
    for first, second in both:
        assert first.scan.case_id == second.scan.case_id
        np.testing.assert_array_equal(second.classes, first.classes)


class CountedBytes(TorchDispatchMode):
    """Notes the largest sum of bytes of tensors that were alive at once."""

    def __init__(self):
        super().__init__()
        self.peak_bytes = 0
        self._alive = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, result)):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self._alive = {key: value for key, value in self._alive.items() if not value[0].expired()}
        self.peak_bytes = max(self.peak_bytes, sum(num_bytes for _, num_bytes in self._alive.values()))
        return result


@pytest.mark.parametrize("spacing_mm", ["keep", [1.0, 1.0, 1.5]])
def test_peak_of_predicting_is_a_windows_depth_of_logits_and_a_few_volumes(tmp_path, monkeypatch, spacing_mm):
    # Pieces as small next to these volumes as they are next to real ones.
    monkeypatch.setattr("voxelocity.infer.sinks._PIECE_VALUES", 1 << 14)
    monkeypatch.setattr("voxelocity.infer.tiling._SMALL_VOXELS", 0)
    shape, num_classes = (64, 40, 40), 14
    refs = scans(tmp_path, 3, shape=shape)
    with CountedBytes() as counted:
        deque(
            predictor(num_classes=num_classes, spacing_mm=spacing_mm, window=16, batch_size=1).stream(
                refs, num_threads=0
            ),
            maxlen=0,
        )
    prepared_voxels = np.prod(shape) / (1.0 if spacing_mm == "keep" else 1.5)
    # The image, the weights of the windows with a partial sum of them, and what a pass takes.
    assert counted.peak_bytes / (4 * prepared_voxels) < 17 / 64 * num_classes + 4


def test_neither_prepared_volumes_nor_predictions_are_held_while_others_are_made(tmp_path):
    predicts, alive = predictor(batch_size=1), []
    refs, seen = scans(tmp_path, 3, shape=(20, 8, 8)), []

    def load(ref):
        case = predicts.load(ref)
        copied = case.volume.with_(image=case.volume.image.copy())
        alive.append(weakref.ref(copied))
        return case._replace(volume=copied)

    predicts._on_windows = lambda: seen.append(sum(held() is not None for held in alive))
    for prediction in predicts.predict_loaded(map(load, refs), on_failure=None, num_threads=0):
        alive.append(weakref.ref(prediction.classes))
        del prediction
    assert set(seen) == {0}


def test_windows_of_small_cases_are_timed_in_full_batches():
    timed = predictor(batch_size=4)
    sizes = []
    timed._network.register_forward_pre_hook(lambda network, images: sizes.append(len(images[0])))
    ticks = iter(range(100))
    # Two clock readings around each round of four windows.
    assert timed.window_seconds(volume(1), limit_s=0.0, clock=lambda: float(next(ticks))) == 0.25
    assert sizes == [4, 4]
