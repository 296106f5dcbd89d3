from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from voxelocity.data.prepare import Preparation, PrepareConfig

FULL = {
    "orientation": "RAS",
    "crop": "nonzero",
    "spacing_mm": (1.0, 1.5, 2.0),
    "dtype": "float16",
    "foreground_per_class": 50,
}


def _scan(make_volume, oblique):
    rng = np.random.default_rng(0)
    image = np.zeros((2, 14, 12, 10), np.int16)
    image[:, 2:12, 1:11, 2:9] = rng.integers(1, 500, (2, 10, 10, 7))
    label = np.zeros((14, 12, 10), np.uint8)
    label[4:9, 3:8, 3:7] = 1
    label[9:11, 3:8, 3:7] = 2
    return make_volume(image, oblique, label)


def test_prepared_case_is_ready_for_the_cache(make_volume, oblique: np.ndarray) -> None:
    volume = Preparation(PrepareConfig.parse(FULL))(_scan(make_volume, oblique))
    assert volume.image.dtype == np.float16
    assert volume.image.flags.c_contiguous
    assert volume.label is not None
    assert volume.label.flags.c_contiguous
    assert volume.label.shape == volume.image.shape[1:] == volume.grid.shape
    assert volume.grid.spacing_mm == pytest.approx((1.0, 1.5, 2.0))
    assert [record["step"] for record in volume.trace] == ["orient", "crop", "resample"]
    assert json.loads(json.dumps(volume.trace)) == [dict(record) for record in volume.trace]
    for index in (1, 2):
        assert (volume.label.ravel()[volume.foreground[index]] == index).all()


def test_equal_input_gives_equal_output_and_is_not_changed(make_volume, oblique: np.ndarray) -> None:
    scan = _scan(make_volume, oblique)
    image, label = scan.image.copy(), scan.label.copy()
    scan.image.flags.writeable = scan.label.flags.writeable = False
    first, second = (Preparation(PrepareConfig.parse(FULL))(scan) for _ in range(2))
    assert np.array_equal(first.image, second.image)
    assert np.array_equal(first.label, second.label)
    assert np.array_equal(scan.image, image)
    assert np.array_equal(scan.label, label)
    assert not np.shares_memory(first.image, scan.image)


def test_order_in_memory_does_not_matter(make_volume, oblique: np.ndarray) -> None:
    scan = _scan(make_volume, oblique)
    fortran = scan.with_(image=np.asfortranarray(scan.image), label=np.asfortranarray(scan.label))
    one, other = (Preparation(PrepareConfig.parse(FULL))(volume) for volume in (scan, fortran))
    assert np.allclose(one.image, other.image, atol=2e-3)
    assert np.array_equal(one.label, other.label)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        FULL,
        {**FULL, "crop": "none"},
        {"spacing_mm": (3, 3, 3), "orientation": "keep"},
        {"intensity": {"mode": "none"}},
    ],
)
def test_description_agrees_with_the_result_or_is_larger_for_a_crop(make_volume, oblique, changes: dict) -> None:
    scan, preparation = _scan(make_volume, oblique), Preparation(PrepareConfig.parse(changes))
    described, made = preparation.describe(scan.spec), preparation(scan)
    assert described.spec.dtype == made.spec.dtype
    assert described.spec.num_channels == made.spec.num_channels
    assert described.scratch_bytes > 0
    if changes.get("crop", "none") == "none":
        assert described.spec == made.spec
    else:
        assert all(a >= b for a, b in zip(described.spec.grid.shape, made.spec.grid.shape, strict=True))


def test_fingerprint_is_the_same_for_equal_values_and_in_another_process_which_imports_neither_torch_nor_decode() -> (
    None
):
    own = Preparation(PrepareConfig.parse({"spacing_mm": [1, 1, 2]})).fingerprint()
    assert own == Preparation(PrepareConfig(spacing_mm=(1.0, 1.0, 2.0))).fingerprint()
    code = (
        "import sys; from voxelocity.data.prepare import *;"
        "print(Preparation(PrepareConfig(spacing_mm=(1.0, 1.0, 2.0))).fingerprint());"
        "print([name for name in ('torch', 'voxelocity.data.decode') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [own, "[]"]


@pytest.mark.parametrize(
    "changes",
    [
        {"spacing_mm": (1, 1, 1.0001)},
        {"orientation": "keep"},
        {"crop": "nonzero"},
        {"margin_voxel": 1},
        {"dtype": "float16"},
        {"foreground_per_class": 9},
        {"intensity": {"mode": "none"}},
        {"intensity": {"nonzero_only": True}},
        {"intensity": {"mode": "window", "low": 0, "high": 1}},
        {"intensity": {"mode": "window", "low": 0, "high": 1, "mean": 0.5}},
    ],
)
def test_fingerprint_changes_with_every_value(changes: dict) -> None:
    assert Preparation(PrepareConfig.parse(changes)).fingerprint() != Preparation(PrepareConfig()).fingerprint()


@pytest.mark.data
@pytest.mark.parametrize(("case", "name"), [("totalseg_ct", "label_auto"), ("msd_spleen_2_crop", "label")])
def test_real_cases_lose_no_class_at_a_moderate_spacing(load, case: str, name: str) -> None:
    scan = load(f"small_ct_mr_samples/{case}/image.nii.gz", f"small_ct_mr_samples/{case}/{name}.nii.gz")
    spacing = tuple(float(s) for s in np.sort(scan.grid.spacing_mm) * 0.9)
    volume = Preparation(PrepareConfig.parse({"spacing_mm": spacing}))(scan)
    sizes = np.bincount(scan.label.ravel(), minlength=256)
    assert set(np.flatnonzero(sizes > 30)) - {0} <= set(volume.foreground)
    assert volume.intensities().mean() == pytest.approx(0, abs=0.2)
