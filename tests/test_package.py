import importlib
import json
import os
import pickle
import pydoc
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import voxelocity
from shared.limits import HANGS_S
from voxelocity.core.cases import Cases
from voxelocity.core.volume import VolumeRef
from voxelocity_observe.core.environment import CHECKOUT, DISTRIBUTIONS

# What Linux has and macOS has not.
_WITHOUT_LINUX = """
import os
for name in ("sched_getaffinity", "sched_setaffinity", "posix_fadvise", "posix_fallocate", "memfd_create", "pidfd_open",
             "eventfd", "O_DIRECT", "O_TMPFILE", "O_PATH", "copy_file_range", "splice"):
    if hasattr(os, name):
        delattr(os, name)
from voxelocity.__main__ import main
main()
"""


def test_completion_offers_the_public_names_and_nothing_else():
    assert dir(voxelocity) == sorted(voxelocity.__all__)
    assert {"open", "plan", "train", "Feed"} <= set(dir(voxelocity))


def test_help_has_the_public_names():
    for name in set(voxelocity.__all__) - {"__version__"}:
        found = getattr(voxelocity, name)
        assert found.__name__ == name
        assert pickle.loads(pickle.dumps(found)) is found
    assert pydoc.render_doc(voxelocity.plan).startswith(
        "Python Library Documentation: function plan in module voxelocity"
    )


def test_the_three_distributions_have_one_version_and_one_license():
    packages = [importlib.import_module(package) for package in DISTRIBUTIONS.values()]
    assert len({package.__version__ for package in packages}) == 1
    for distribution in DISTRIBUTIONS:
        assert (ROOT / "packages" / distribution / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_cases_print_in_one_line_that_says_what_they_are():
    refs = tuple(VolumeRef(case_id=f"c{i}", images=(Path(f"c{i}.nii"),), label=Path("l.nii")) for i in range(208))
    cases = Cases(name="Heart", root=Path("data/heart"), layout="msd", channels=("MRI",), labels={0: "bg", 1: "atrium"},
                  refs=refs)  # fmt: skip
    assert repr(cases) == "Cases('Heart', msd: 208 cases, 208 labeled; channels: MRI; classes: atrium; 'data/heart')"


def test_an_unsupported_system_is_refused_in_one_sentence(monkeypatch, capsys):
    from voxelocity import __main__ as command

    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ImportError, match=r"voxelocity.train: Voxelocity runs on Linux, .* not on win32; .* WSL 2"):
        _ = voxelocity.train
    with pytest.raises(SystemExit, match="voxelocity: Voxelocity runs on Linux"):
        command.main()


@pytest.mark.nightly
def test_training_and_predicting_need_nothing_that_only_linux_has(tiny_msd, tiny_sets, tmp_path):
    def call(*arguments: object) -> None:
        command = [sys.executable, "-c", _WITHOUT_LINUX, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_S, check=False)
        assert done.returncode == 0, done.stderr

    call("train", tiny_msd, "-o", tmp_path / "run", *tiny_sets)
    call("predict", tmp_path / "run", tiny_msd / "imagesTr" / "case_0.nii.gz", "-o", tmp_path / "out")
    assert json.loads((tmp_path / "run" / "scores.json").read_text())["cases"]


def test_ctrl_c_while_the_command_line_is_imported_ends_without_a_traceback(tmp_path):
    """The signal arrives while `voxelocity_observe.cli.main` is being imported."""
    script = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'voxelocity_observe.cli.main':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from voxelocity.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script, "explain"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "voxelocity: stopped by Ctrl-C\n")


def test_a_reader_that_goes_away_ends_the_command_as_a_closed_pipe_does():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "voxelocity", "explain"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("closed", [(1,), (0, 1, 2)], ids=["output", "all"])
def test_closed_standard_streams_are_no_files_of_ours(tmp_path, closed):
    """The next file that is opened would take their number, and a program that we start could not print."""
    program = "import os, sys; os.write(1, b'yarts'[::-1]); sys.exit(3)"
    shut = " ".join(f"{number}>&-" for number in closed)
    line = f'exec "$@" {shut}'
    command = [sys.executable, "-m", "voxelocity", "monitor", "-o", "watched", "--", sys.executable, "-c", program]
    done = subprocess.run(
        ["sh", "-c", line, "sh", *command], cwd=tmp_path, capture_output=True, timeout=HANGS_S, check=False
    )
    assert done.returncode == 3, done.stderr
    kept = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert kept
    assert not [file for file in kept if b"stray" in file.read_bytes()]


ROOT = CHECKOUT
_IN_THE_ROOT = {
    ".ci", ".dockerignore", ".editorconfig", ".github", ".gitignore", ".pre-commit-config.yaml", "ARCHITECTURE.md",
    "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "Dockerfile", "LICENSE", "Makefile", "README.md",
    "SECURITY.md", "conftest.py", "constraints.txt", "docs", "environment.yml", "examples", "mkdocs.yml",
    "packages", "pyproject.toml", "tests",
}  # fmt: skip
_MOST_TRACKED_BYTES = 300_000


def test_the_repository_holds_no_outputs_and_nothing_large():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a checkout of git")
    names = [os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    assert {name.partition("/")[0] for name in names} <= _IN_THE_ROOT, "unknown names in the root"
    sizes = {name: (ROOT / name).lstat().st_size for name in names if os.path.lexists(ROOT / name)}
    assert {name: size for name, size in sizes.items() if size > _MOST_TRACKED_BYTES} == {}
    empty = {name for name, size in sizes.items() if size == 0}
    assert {name for name in empty if Path(name).name not in ("__init__.py", "py.typed")} == set()


@pytest.mark.parametrize("name", ["saving_plain", "saving_monai", "saving_lightning"])
def test_scripts_that_save_leave_nothing_in_the_repository(name):
    pytest.importorskip({"saving_lightning": "pytorch_lightning", "saving_monai": "ignite"}.get(name, "torch"))
    script = ROOT / "packages" / "voxelocity-lab" / "benchmarks" / "slow_scripts" / f"{name}.py"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script],
        cwd=ROOT,
        env={**os.environ, "STEPS": "1"},
        capture_output=True,
        text=True,
    )
    assert "in a folder of its own" in done.stderr
    assert not (ROOT / "checkpoints").exists()
