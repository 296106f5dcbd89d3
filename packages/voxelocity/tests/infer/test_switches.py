"""A model predicts with the switches that it was trained with, and the process gets its own back."""

import contextlib

import nibabel as nib
import numpy as np
import pytest
import torch

from voxelocity.infer import ModelSpec, PredictionSpec, files, predict_files, save_model
from voxelocity.infer.switches import switches_of
from voxelocity.step import BackendConfig, NetworkConfig, backend_as_found, build_network
from voxelocity.step.fused import is_fused
from voxelocity_observe.core.device import HOST

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


@pytest.fixture(autouse=True)
def _as_found():
    with backend_as_found(CUDA):
        yield


def spec(**backend):
    values = {
        "channels": ["ct"],
        "labels": {0: "background", 1: "organ"},
        "window": {"shape_voxel": [16, 16, 16]},
        "precision": {"compute": "float32"},
    }
    return PredictionSpec.parse({**values, "backend": BackendConfig(**backend).to_plain()} if backend else values)


def switches():
    cudnn = torch.backends.cudnn
    return is_fused("norm"), cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, cudnn.benchmark


def test_switches_are_those_of_the_training_within_and_the_processs_afterwards():
    torch.backends.cudnn.benchmark = True
    before = switches()
    with switches_of(spec(tf32=False, fused_norm=False, cudnn_benchmark=True), [CPU, CUDA]):
        # Passes are of several sizes, so nothing is tried.
        assert switches() == (False, False, False, False)
    assert switches() == before
    with switches_of(spec(tf32=True), [CUDA]):
        assert switches() == (True, True, True, False)
    with pytest.raises(ZeroDivisionError), switches_of(spec(tf32=False), [CUDA]):
        raise ZeroDivisionError
    assert switches() == before


def test_nothing_changes_without_a_device_of_torch_and_on_a_cpu_our_norm_alone():
    before = switches()
    with switches_of(spec(tf32=False, fused_norm=False), [HOST]):
        assert switches() == before
    with switches_of(spec(tf32=False, fused_norm=False), [CPU, HOST]):
        assert switches() == (False, *before[1:])
    assert switches() == before


def test_a_model_that_says_nothing_leaves_the_processs_switches():
    before = switches()
    with switches_of(spec(), [CUDA]):
        assert switches() == before
    assert spec().backend is None


def test_predictions_of_a_run_use_the_switches_in_its_description(tmp_path, monkeypatch):
    entered = []
    monkeypatch.setattr(files, "switches_of", lambda *given: entered.append(given) or contextlib.nullcontext())
    network = NetworkConfig(name="unet", widths=(4, 8), strides=((2, 2, 2),))
    described = ModelSpec.parse(
        spec(tf32=False).to_plain() | {"network": network.to_plain(), "prepare": {"spacing_mm": "keep"}}
    )
    (folder := tmp_path / "run").mkdir()
    save_model(folder, build_network(network, num_channels=1, num_classes=2, seed=0), described)
    nib.Nifti1Image(np.arange(16**3, dtype=np.int16).reshape(16, 16, 16), np.eye(4)).to_filename(tmp_path / "a.nii.gz")
    predict_files(folder, tmp_path / "a.nii.gz", tmp_path / "out", device="cpu", num_threads=1, page=False)
    ((used, devices),) = entered
    assert used.backend == BackendConfig(tf32=False)
    assert devices == (CPU,)
