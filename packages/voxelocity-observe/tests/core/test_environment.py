"""The record of versions and machine."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch

from voxelocity_observe.core.environment import _commit, _gpu_name, checkout_project, environment


def test_environment_holds_the_versions_in_use_and_is_plain_data():
    found = environment()
    assert found["python"] == platform.python_version()
    # What was installed may leave out which build it is.
    assert found["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert found["numpy"] == numpy.__version__
    assert found["voxelocity"][0].isdigit()
    assert found["num_cpus"] >= 1
    assert found["memory_bytes"] > 2**28
    assert json.loads(json.dumps(found)) == found


def test_environment_imports_neither_torch_nor_monai():
    program = (
        "import sys, voxelocity_observe.core.environment as o; o.environment(); "
        "print({'torch', 'monai', 'numpy'} & {*sys.modules})"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == "set()"


def test_project_of_a_distribution_is_read_from_its_project_file(tmp_path):
    assert checkout_project("voxelocity-lab", tmp_path) == {}
    file = tmp_path / "packages" / "voxelocity-lab" / "pyproject.toml"
    file.parent.mkdir(parents=True)
    file.write_text('[project]\nname = "voxelocity-lab"\nversion = "9.8.7"\n')
    assert checkout_project("voxelocity-lab", tmp_path)["version"] == "9.8.7"
    file.write_text('[project]\nname = "other"\nversion = "1.0"\n')
    assert checkout_project("voxelocity-lab", tmp_path) == {}


def test_gpu_name_comes_from_the_driver_while_torch_has_not_started_cuda(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert _gpu_name(tmp_path) is None
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0" / "information").write_text("Model: \t\t NVIDIA Test GPU\nIRQ: 5\n")
    assert _gpu_name(tmp_path) == "NVIDIA Test GPU"


def test_gpu_name_comes_from_torch_once_it_has_started_cuda(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    assert _gpu_name(tmp_path) == "GPU 0"


def test_commit_is_the_hash_of_the_checkout_and_says_when_files_differ(tmp_path: Path):
    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert _commit(tmp_path) is None
    try:
        git("init", "-q")
    except FileNotFoundError:
        pytest.skip("git is not installed")
    assert _commit(tmp_path) is None
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-q", "-m", "first")
    commit = git("rev-parse", "HEAD")
    assert _commit(tmp_path) == commit
    (tmp_path / "file").write_text("two")
    assert _commit(tmp_path) == f"{commit}-dirty"
