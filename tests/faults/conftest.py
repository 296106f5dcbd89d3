"""Commands that get into trouble: a runner, the undisturbed result to compare with, and a count of the trials."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shared.trial import Ended, Started, Trouble, start


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.nightly)


@dataclass
class Trials:
    """Counts what was tried, and continues with the next trial after one that failed."""

    factor: float
    num_tried: int = 0
    failed: list[str] = field(default_factory=list)

    def num(self, usual: int) -> int:
        """How many to make where `usual` is the modest number."""
        return max(1, round(usual * self.factor))

    @contextlib.contextmanager
    def one(self, name: object) -> Iterator[None]:
        """One trial; what goes wrong in it is kept for the end of the test."""
        self.num_tried += 1
        try:
            yield
        except Exception as error:
            self.failed.append(f"{name}: {type(error).__name__}: {error}")


@pytest.fixture
def trials(record_property: Callable[[str, object], None]) -> Iterator[Trials]:
    """VOXELOCITY_TRIALS multiplies how many are made: 1 takes minutes."""
    made = Trials(float(os.environ.get("VOXELOCITY_TRIALS", "1")))
    yield made
    record_property("trials", made.num_tried)
    record_property("failed", len(made.failed))
    assert not made.failed, f"{len(made.failed)} of {made.num_tried} trials failed:\n" + "\n".join(made.failed)


@contextlib.contextmanager
def one_thread_each() -> Iterator[None]:
    """Within the block, variables that libraries read which the forked process imports once."""
    with pytest.MonkeyPatch.context() as patched:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            patched.setenv(name, "1")
        patched.setenv("OMP_WAIT_POLICY", "PASSIVE")
        patched.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        yield


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Starts a command: `launch("train", data, "-o", run, trouble=Trouble(...))`."""

    def call(*arguments: object, trouble: Trouble | None = None, script: str = "") -> Started:
        return start(arguments, place=tmp_path / "shm", trouble=trouble, script=script)

    with one_thread_each():
        yield call


@pytest.fixture
def command(launch: Callable[..., Started]) -> Callable[..., Ended]:
    """Runs a command to its end, which must not be a traceback."""
    return lambda *arguments, **options: launch(*arguments, **options).ended().in_words()


@pytest.fixture(scope="session")
def often(tiny_sets: list[str]) -> list[str]:
    """The tiny plan with checkpoints after every step and two validations."""
    changes = ("train.validate_every_steps=3", "train.checkpoint_every_s=1e-9", "data.feed.num_threads=1")
    return [*tiny_sets, *(part for change in changes for part in ("--set", change))]


@pytest.fixture
def tier_sets(tmp_path: Path) -> Callable[..., list[str]]:
    """Options that choose a tier with a folder of this test's own."""

    def make(tier: str, format: str = "raw", folder: Path | None = None) -> list[str]:
        keys = {"tier": tier, "folder": folder or tmp_path / "cache", "format": format}
        return [part for key, value in keys.items() for part in ("--set", f"data.cache.{key}={value}")]

    return make


def weights_of(run: Path) -> str:
    """What tells the weights of one run from those of another."""
    return hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="session")
def digest() -> Callable[[Path], str]:
    """The checksum of a run's weights."""
    return weights_of


@dataclass(frozen=True)
class Undisturbed:
    """A run to which nothing happened, and the predictions of its model."""

    run: Path
    weights: str
    predictions: dict[str, bytes]
    train_cpu_s: float


@pytest.fixture(scope="session")
def undisturbed(tiny_msd: Path, often: list[str], tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Made once; never changed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run, out = folder / "run", folder / "out"

    def finish(*arguments: object) -> Ended:
        # What a process used stands in its last word.
        script = "import atexit, time; atexit.register(lambda: print('cpu', time.process_time()))"
        ended = start(arguments, place=folder / "shm", script=script).ended().in_words()
        assert ended.status == 0, ended.err
        return ended

    with one_thread_each():
        trained = finish("train", tiny_msd, "-o", run, "--device", "cpu", *often)
        finish("predict", run, tiny_msd / "imagesTr", "-o", out, "--device", "cpu")
    cpu_s = float(trained.out.rpartition("cpu ")[2].split()[0])
    return Undisturbed(run, weights_of(run), contents(out), cpu_s)


def contents(folder: Path) -> dict[str, bytes]:
    """The visible files of a folder, but for the table and the page of predictions, which tell how long each took."""
    files = (path for path in folder.iterdir() if not path.name.startswith((".", "predictions.")))
    return {path.name: path.read_bytes() for path in files}


@pytest.fixture(scope="session")
def files_of() -> Callable[[Path], dict[str, bytes]]:
    """Names and bytes of the visible files of a folder."""
    return contents


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[..., Path]:
    """A copy of a folder that a trial may break, each under another name."""
    numbers = itertools.count()
    return lambda folder: Path(shutil.copytree(folder, tmp_path / f"copy-{next(numbers)}"))


@pytest.fixture
def damaged(copy_of: Callable[..., Path]) -> Any:
    """A copy of a folder with one file of it changed."""

    def make(folder: Path, name: str, change: Callable[[bytes], bytes]) -> Path:
        copy = copy_of(folder)
        (copy / name).write_bytes(change((folder / name).read_bytes()))
        return copy

    return make
