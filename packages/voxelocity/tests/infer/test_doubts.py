"""What is said of a scan unlike the training scans, and of one that is like them: nothing."""

import nibabel as nib
import numpy as np
import pytest
import torch

from shared.small_predictor import small_spec
from voxelocity.core.volume import Grid, Volume
from voxelocity.data.decode import read_header
from voxelocity.infer import PredictionSpec
from voxelocity.infer.doubts import device_doubts, grid_doubts, intensity_doubts

CPU = torch.device("cpu")
CT = {"mode": "window", "low": -160.0, "high": 240.0}


def spec(*, intensity=CT, compute="float32", trained_on=True, **more):
    trained = {
        "num_cases": 20,
        "spacing_mm": [[0.7, 0.9], [0.7, 0.9], [1.0, 5.0]],
        "extent_mm": [[300, 450], [300, 450], [150, 700]],
        "intensity": [[-1024, 3071]],
        "foreground_median": [100],
    }
    more = {**({"trained_on": trained} if trained_on else {}), **more}
    return small_spec(prepare={"intensity": intensity}, precision={"compute": compute}, **more)


@pytest.fixture
def headers(tmp_path):
    def make(*, shape=(400, 420, 100), spacing=(0.8, 0.8, 3.0), edit=None):
        image = nib.Nifti1Image(np.zeros(shape, np.uint8), np.diag([*spacing, 1.0]))
        if edit is not None:
            edit(image.header)
            image = nib.Nifti1Image(image.dataobj, None, image.header)
        nib.save(image, tmp_path / "a.nii.gz")
        return [read_header(tmp_path / "a.nii.gz")]

    return make


def test_a_scan_like_the_training_scans_raises_no_doubt(headers):
    assert grid_doubts(headers(), spec()) == []
    # Its first axis runs along the z of the training scans.
    turned = np.array([[0, 0.8, 0, 0], [0, 0, 0.8, 0], [3.0, 0, 0, 0], [0, 0, 0, 1]])
    edit = lambda header: (header.set_qform(None, 0), header.set_sform(turned, 1))  # noqa: E731
    assert grid_doubts(headers(shape=(100, 400, 420), spacing=(3.0, 0.8, 0.8), edit=edit), spec()) == []


def test_another_spacing_and_size_are_said_with_both_figures(headers):
    thick, small = grid_doubts(headers(shape=(400, 20, 60), spacing=(0.8, 0.8, 12.0)), spec())
    assert thick == "its spacing along z is 12 mm (training scans: 1 to 5 mm)"
    assert small == "its size along y is 16 mm (training scans: 300 to 450 mm)"


def test_a_scan_without_a_place_or_with_two_is_doubted_whatever_the_training(headers):
    (nowhere,) = grid_doubts(headers(edit=lambda h: (h.set_sform(None, 0), h.set_qform(None, 0))), spec())
    assert "qform_code and sform_code are 0" in nowhere

    def move(header):
        header.set_qform(np.diag([0.8, 0.8, 3.0, 1.0]), 1)
        moved = np.diag([0.8, 0.8, 3.0, 1.0])
        moved[0, 3] = 12.0
        header.set_sform(moved, 1)

    (apart,) = grid_doubts(headers(edit=move), spec(trained_on=False))
    assert apart.startswith("its sform and qform lie up to 12 mm apart; the sform is used")


def test_a_pixdim_that_is_not_the_spacing_of_the_sform_is_doubted(headers):
    edit = lambda header: (header.set_qform(None, 0), header.set_sform(np.eye(4), 1))  # noqa: E731
    (doubt,) = grid_doubts(headers(spacing=(3.0, 3.0, 3.0), edit=edit), spec(trained_on=False))
    assert doubt == "its pixdim gives voxels of 3 x 3 x 3 mm, and its sform, which is used, voxels of 1 x 1 x 1 mm"


def scan(low, high):
    image = np.linspace(low, high, 6 * 7 * 8, dtype=np.float32).reshape(1, 6, 7, 8)
    return Volume(case_id="x", image=image, label=None, grid=Grid.of((6, 7, 8), np.eye(4)))


@pytest.mark.parametrize(
    ("low", "high", "is_unlike"),
    [
        (-1000.0, 2000.0, False),
        (-200.0, 400.0, False),
        (0.0, 4095.0, True),  # never shifted to Hounsfield units
        (0.0, 900.0, True),  # an MR
        (-5.0, 12.0, True),  # a map of statistics
        (-30_000.0, 30_000.0, True),
    ],
)
def test_intensities_unlike_the_training_are_said_with_both_figures(low, high, is_unlike):
    doubts = intensity_doubts(scan(low, high), spec())
    assert len(doubts) == is_unlike
    if is_unlike:
        assert doubts[0].startswith("its values run from")
        assert doubts[0].endswith("(training scans: -1024 to 3071)")
    assert intensity_doubts(scan(low, high), spec(intensity={"mode": "zscore"})) == []
    assert intensity_doubts(scan(low, high), spec(trained_on=False)) == []


def test_a_scan_of_one_value_is_said():
    assert intensity_doubts(scan(3.0, 3.0), spec(intensity={"mode": "zscore"})) == ["its values are 3 everywhere"]


def test_a_format_that_the_device_only_emulates_is_said(monkeypatch):
    monkeypatch.setattr("voxelocity.step.precision_config.cpu_has_fast_bfloat16", lambda: True)
    (text,) = device_doubts(spec(compute="float16"), CPU)
    assert "computes in float16" in text
    assert text.endswith("float32 is used")
    assert device_doubts(spec(compute="bfloat16"), CPU) == []
    monkeypatch.setattr("voxelocity.step.precision_config.cpu_has_fast_bfloat16", lambda: False)
    assert len(device_doubts(spec(compute="bfloat16"), CPU)) == 1


def test_a_model_of_another_toolkit_computes_on_a_cpu_as_it_does_there():
    values = spec(compute="float16").model_dump(include=set(PredictionSpec.model_fields))
    assert device_doubts(PredictionSpec.model_validate(values), CPU) == []
