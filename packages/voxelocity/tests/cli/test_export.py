"""`voxelocity export`, and `predict` from what it wrote."""

from __future__ import annotations

import json

import nibabel as nib
import numpy as np
import pytest

from shared.onnx_traces import traced_once
from shared.refused import assert_refused


@pytest.fixture
def run(model):
    with traced_once():
        yield model("CT")


def test_a_run_is_exported_and_the_export_predicts_as_the_run(voxelocity, run, tmp_path):
    scan, out = tmp_path / "scan.nii.gz", tmp_path / "export"
    voxels = np.random.default_rng(0).standard_normal((20, 18, 8)).astype(np.float32)
    nib.save(nib.Nifti1Image(voxels, np.eye(4)), scan)
    ended = voxelocity("export", run, "-o", out, "--to", "onnx", "--device", "cpu").succeeded()
    assert f"warning: export: the validation cases of {run} cannot be reached" in ended.out
    assert "The export matches the run: on 2 windows of noise" in ended.out
    assert f"exported to {out}; see {out / 'parity.html'}" in ended.out
    assert json.loads((out / "parity.json").read_text())["tolerance"] == 0.001
    for model, options in ((run, ()), (out, ()), (run, ("--runtime", "onnxruntime")), (run, ("--runtime", "auto"))):
        folder = tmp_path / f"{model.name}{len(options)}{options[-1:]}"
        ended = voxelocity("predict", model, scan, "-o", folder, "--device", "cpu", *options).succeeded()
        found = np.asarray(nib.load(folder / "scan.nii.gz").dataobj)
        if model == run and not options:
            wanted = found
        assert set(np.unique(found)) == {0, 7}
        assert (found == wanted).mean() > 0.999
    # The last one.
    assert "runtime eager, untested: 4 windows take it about" in ended.out


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        (("--to", "tflite"), ("--to 'tflite' is not known", "onnx, openvino, pt2, tensorrt")),
        (("--to", "tensorrt"), ("TensorRT needs a CUDA device, not cpu",)),
    ],
)
def test_what_cannot_be_exported_is_refused_in_one_line(voxelocity, run, tmp_path, options, texts):
    ended = voxelocity("export", run, "-o", tmp_path / "out", "--device", "cpu", *options)
    assert ended.status == 2, ended
    assert len(ended.err.splitlines()) == 1, ended.err
    assert all(text in ended.err for text in texts), ended.err
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_run_is_refused(voxelocity, tmp_path):
    ended = voxelocity("export", tmp_path, "-o", tmp_path / "out", "--to", "onnx", "--device", "cpu")
    assert_refused(ended, f"{tmp_path} holds no model.json")
    assert not (tmp_path / "out").exists()


def test_an_unknown_runtime_is_refused_before_any_scan_is_read(voxelocity, run, tmp_path):
    scan = tmp_path / "scan.nii.gz"
    scan.write_bytes(b"no scan")
    ended = voxelocity("predict", run, scan, "-o", tmp_path / "out", "--runtime", "tpu", "--device", "cpu")
    assert_refused(ended, "--runtime 'tpu' is not known; choose auto, eager")
