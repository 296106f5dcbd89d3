"""Recording programs that are started as they are: by the folder of `sitecustomize` on their path."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shared.limits import HANGS_S
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.diagnose import recorder
from voxelocity_observe.diagnose.facts import Facts, read_facts
from voxelocity_observe.diagnose.watching.attach import recording_environment

RECORDER = Path(recorder.__file__).parent

TRAINING = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset

class Items(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.ones(4), index % 2

def main():
    net = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    loader = DataLoader(Items(), batch_size=4, num_workers=1, multiprocessing_context="spawn")
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    print("path:", any("recorder" in path for path in sys.path))

if __name__ == "__main__":
    main()
"""


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    chosen = recording_environment(folder, whole=True, environment={**os.environ, "PYTHONPATH": "", **environment})
    return subprocess.run(command, env=chosen, capture_output=True, text=True, timeout=HANGS_S, check=False)


def record(tmp_path: Path, *command: str, **environment: str) -> tuple[subprocess.CompletedProcess[str], Facts]:
    folder = tmp_path / "recording"
    done = run(folder, *command, **environment)
    return done, read_facts(folder)


def test_training_behind_a_shell_script_is_recorded_with_its_spawned_worker(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "run.sh").write_text(f'cd {tmp_path}\nexec {sys.executable} train.py "$@"\n')
    done, facts = record(tmp_path, "bash", str(tmp_path / "run.sh"), "--fast")
    assert (done.returncode, done.stdout, done.stderr) == (0, "path: False\n", "")
    assert len(facts.steps) == 16
    # What follows the program's name may hold passwords.
    assert facts.main.argv[-1:] == ("train.py",)
    assert facts.ended.reason == "program"
    assert [fetch.worker for fetch in facts.fetches] == [0]
    assert facts.main.versions["torch"]
    assert not (tmp_path / "recording" / "errors.txt").exists()


def test_a_program_that_sets_its_own_python_path_for_spawned_workers_runs_as_ever(tmp_path: Path) -> None:
    own = 'def main():\n    import os\n    os.environ["PYTHONPATH"] = "/nowhere"\n'
    (tmp_path / "train.py").write_text(TRAINING.replace("def main():\n", own))
    done, facts = record(tmp_path, sys.executable, str(tmp_path / "train.py"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "path: False\n", "")
    assert len(facts.steps) == 16
    assert facts.fetches == ()


LATE = """
import multiprocessing, sys

def train():
    import torch
    net = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(8):
        optimizer.zero_grad()
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()

if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[1]).Process(target=train)
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_process_that_imports_torch_only_after_its_fork_is_recorded_to_its_end(tmp_path: Path, method: str) -> None:
    (tmp_path / "late.py").write_text(LATE)
    done, facts = record(tmp_path, sys.executable, str(tmp_path / "late.py"), method)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(facts.steps) == 8
    assert facts.ended.reason == "program"


def test_persons_own_sitecustomize_runs_and_keeps_its_name(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("value = 5\n")
    script = "import sitecustomize, sys; print(sitecustomize.value, sitecustomize.__file__)"
    chosen = recording_environment(tmp_path / "r", environment={**os.environ, "PYTHONPATH": str(own)})
    done = subprocess.run([sys.executable, "-c", script], env=chosen, capture_output=True, text=True, check=True)
    assert done.stdout == f"5 {own / 'sitecustomize.py'}\n"


def test_program_that_ends_by_os_exit_has_imported_torch_and_began_when_it_did(tmp_path: Path) -> None:
    before_s = time.perf_counter()
    code = "import os, time, torch; time.sleep(1.2); os._exit(7)"
    done, facts = record(tmp_path, sys.executable, "-c", code)
    assert done.returncode == 7
    assert "torch" in facts.main.versions
    assert "steps: no torch optimizer made a step while the program was watched" in facts.not_measured
    assert before_s - 0.1 < facts.main.began_s < time.perf_counter()


def test_program_that_never_imports_torch_is_told_so(tmp_path: Path) -> None:
    done, facts = record(tmp_path, sys.executable, "-c", "print(1)")
    assert done.stdout == "1\n"
    assert "steps: the program never imported torch" in facts.not_measured
    assert facts.main.role == "main"


def test_python_that_ignores_its_environment_is_told_with_the_cure(tmp_path: Path) -> None:
    run(tmp_path / "recording", sys.executable, "-I", "-c", "pass")
    with pytest.raises(InputError, match=r"no Python program was recorded in .*with -I, -E or -S.*start it without"):
        read_facts(tmp_path / "recording")


def test_failure_of_the_recorder_is_told_and_the_program_goes_on(tmp_path: Path) -> None:
    broken = Path(shutil.copytree(RECORDER, tmp_path / "recorder"))
    (broken / "recording.py").write_text("raise RuntimeError('planted')\n")
    folder = tmp_path / "recording"
    chosen = {**recording_environment(folder), "PYTHONPATH": str(broken / "site")}
    done = subprocess.run([sys.executable, "-c", "print(1)"], env=chosen, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("1\n", "")
    assert "the recorder could not be started" in (folder / "errors.txt").read_text()
    with pytest.raises(InputError, match="the recorder could not be started: RuntimeError: planted"):
        read_facts(folder)


def test_nothing_happens_without_the_variable(tmp_path: Path) -> None:
    chosen = recording_environment(tmp_path / "recording")
    del chosen["VOXELOCITY_RECORD"]
    script = "import sys; print([name for name in sys.modules if 'recorder' in name])"
    done = subprocess.run([sys.executable, "-c", script], env=chosen, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert list((tmp_path / "recording").iterdir()) == []


def test_killed_program_leaves_what_was_seen(tmp_path: Path) -> None:
    script = (
        "import sys, types, time, os, signal\n"
        "recorder = sys.modules['voxelocity_recorder.recording']\n"
        "writer = recorder._recording._writer\n"
        "writer.start()\n"
        "writer.write('step', start_s=1.0, seconds=1.0, parts={'other': 1.0})\n"
        "time.sleep(0.8)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done, facts = record(tmp_path, sys.executable, "-c", script)
    assert done.returncode == -9
    assert len(facts.steps) == 1
    assert facts.ended is None


@pytest.mark.parametrize("path", sorted(RECORDER.rglob("*.py")), ids=lambda path: path.name)
def test_recorder_is_python_of_version_3_9_and_imports_the_standard_library_alone(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    outside = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    for node in outside:
        if isinstance(node, ast.ImportFrom) and node.level:
            continue
        names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        assert {str(name).partition(".")[0] for name in names} <= sys.stdlib_module_names
