"""What every test shares: real data by name, tiny data and a tiny plan, the command line, a guard against leftovers."""

from __future__ import annotations

import base64
import errno
import functools
import gc
import json
import os
import secrets
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

from shared.examples import examples, is_thorough
from voxelocity_observe.core.place import concerns_one_rank

# No test depends on how quick the machine is, nor does `make test` on luck: only `make test-all` tries other examples
# each time.
hypothesis.settings.register_profile(
    "voxelocity", deadline=None, max_examples=examples(100), derandomize=not is_thorough
)
hypothesis.settings.load_profile("voxelocity")


# One white pixel.
_BLANK_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mP4DwABAQEAG7buVgAAAABJRU5ErkJggg=="
)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real scans; tests that need it are skipped where it is absent."""
    default = Path(__file__).resolve().parents[1] / "shared" / "data"
    folder = Path(os.environ.get("VOXELOCITY_DATA", default)).absolute()
    if not folder.is_dir():
        pytest.skip(f"real data not found at {folder}; name its folder in VOXELOCITY_DATA")
    return folder


# What a shell, a scheduler or a launcher of ranks may set for other purposes than to number them, by its first letters.
_OF_THE_CALLER = (
    "CLICOLOR", "COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "TERM",
    "GROUP_", "LOCAL_", "MASTER_", "OMPI_", "ROLE_", "SLURM_",
    "MLFLOW_", "VOXELOCITY_MONAI", "VOXELOCITY_RECORD", "VOXELOCITY_SPANS", "WANDB_", "XDG_",
)  # fmt: skip
_CACHE = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Nothing depends on the caller's terminal or scheduler, and no case is prepared in the user's cache."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    for name in [name for name in os.environ if name.startswith(_OF_THE_CALLER) or concerns_one_rank(name)]:
        del os.environ[name]
    # Its list of fonts takes a second.
    os.environ.setdefault("MPLCONFIGDIR", str(usual / "matplotlib"))
    config.stash[_CACHE] = os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="voxelocity-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.stash[_CACHE], ignore_errors=True)


_STATE_BEFORE = pytest.StashKey[dict[str, dict[Any, Any]]]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """Every test draws the same, whatever ran before it."""
    from shared.leaks import seed_everything, state_now

    item.stash[_STATE_BEFORE] = state_now()
    seed_everything()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """A test that changes the process for those after it fails, and only that one."""
    from shared.leaks import restore

    try:
        result = yield
    finally:
        changes = restore(item.stash[_STATE_BEFORE])
    if changes:
        pytest.fail("\n".join(["left behind by this test and its fixtures:", *changes]), pytrace=False)
    return result


@pytest.fixture(autouse=True)
def _no_thread_is_left_behind() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [t for t in threading.enumerate() if t not in before and not t.daemon]
    for thread in left:
        thread.join(timeout=60)
    still = [thread.name for thread in left if thread.is_alive()]
    assert not still, f"threads left running: {still}"


@pytest.fixture(autouse=True)
def _no_memory_is_shared_with_other_tests(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Equal files and preparation are equal content: without this a test could find what another has cached.

    On disk, as the file system in memory of a container may be too small, which would be reported.
    """
    place = tmp_path_factory.getbasetemp() / f"shared-{secrets.token_hex(6)}"
    monkeypatch.setattr("voxelocity.data.cache.choose.memory_folder", lambda *, min_free_bytes: (place, ""))


@pytest.fixture(autouse=True)
def _plans_are_made_by_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured, they would take seconds and depend on how busy the machine is."""
    monkeypatch.setattr("voxelocity.planning.make._MEASURE", "never")


@pytest.fixture(autouse=True)
def _charts_are_blank(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing them takes most of the time of a tiny training. Where they are looked at, tests have the mark `draws`."""
    if request.node.get_closest_marker("draws") is not None:
        return

    def save(figure: Any, file: Any, *, format: str = "svg", **options: Any) -> None:
        file.write(_BLANK_PNG if format == "png" else '<svg width="1pt" height="1pt"></svg>')

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", save)
    for name in ("voxelocity_observe.document.charts", "voxelocity.report.pictures"):
        monkeypatch.setattr(f"{name}.draw_time_axes", lambda *_, **__: None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """With REQUIRE_GPU=1 a test that would be skipped for want of a GPU fails instead."""
    report = yield
    is_gpu = item.get_closest_marker("gpu") and "no CUDA device" in str(report.longrepr)
    if report.skipped and is_gpu and os.environ.get("REQUIRE_GPU") == "1":
        report.outcome = "failed"
        report.longrepr = f"REQUIRE_GPU=1, but this test was skipped: {report.longrepr}"
    return report


def pytest_collection_finish() -> None:
    """Prepares a process that runs tests; the one that hands them out to others collects none."""
    import torch

    # Handing pieces of tiny networks to other threads takes longer than computing them.
    torch.set_num_threads(1)
    # What was imported is not searched by each collection of garbage, nor by each diagnosis: a second each time.
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    if "shared.forked" in sys.modules:
        sys.modules["shared.forked"].end_server()


@dataclass(frozen=True)
class Outcome:
    """What a command came to."""

    status: int
    out: str
    err: str

    def succeeded(self) -> Outcome:
        """This outcome, which must be that of a command that ended well."""
        assert self.status == 0, self.err
        return self


@pytest.fixture(scope="session")
def _command_built_once() -> Callable[..., Any]:
    """Reading the options from all commands' signatures takes a tenth of a second, for each command that is called."""
    import typer.main

    return functools.cache(typer.main.get_command)


@pytest.fixture
def voxelocity(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], _command_built_once: Callable[..., Any]
) -> Callable[..., Outcome]:
    """The command line in this process: `voxelocity("train", folder, "-o", out)`."""
    from voxelocity_observe.cli.main import main

    monkeypatch.setattr("typer.main.get_command", _command_built_once)

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["voxelocity", *map(str, arguments)])
        capsys.readouterr()
        status: Any = 0
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
        captured = capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def reads_of_tensors() -> Callable[[], Any]:
    """Makes a context that lists, in `found`, the operations of its thread that a CUDA device must be waited for."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    # Also those whose result has a size that depends on values.
    names = ("_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "bincount")

    class Reads(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.found: list[str] = []

        def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
            name = function.overloadpacket.__name__
            indices = arguments[1] if name == "index" else ()
            has_mask = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)
            if name in names or name.startswith(("unique", "_unique")) or has_mask:
                self.found.append(name)
            return function(*arguments, **(options or {}))

    return Reads


@pytest.fixture(scope="session")
def tiny_plan() -> dict[str, Any]:
    """Keys of a plan that trains in a fraction of a second."""
    return {
        "network.name": "unet",
        "network.widths": [4, 8],
        "network.strides": [[2, 2, 2]],
        "data.patch.shape_voxel": [16, 16, 16],
        "window.shape_voxel": [16, 16, 16],
        "train.steps": 6,
        "precision.compute": "float32",
        "precision.channels_last": False,
        "data.cache.tier": "memory",
    }


@pytest.fixture
def closed_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that may not be entered or listed, by hand, as tests may run as root, who may do both."""
    folder, stat, access, iterdir = tmp_path / "closed", os.stat, os.access, Path.iterdir
    folder.mkdir()

    def closed_stat(path: Any, **options: Any) -> os.stat_result:
        if str(path).startswith(f"{folder}/"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    def closed_iterdir(path: Path) -> Iterator[Path]:
        if path == folder:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return iterdir(path)

    monkeypatch.setattr(os, "stat", closed_stat)
    monkeypatch.setattr(os, "access", lambda path, mode: path != folder and access(path, mode))
    monkeypatch.setattr(Path, "iterdir", closed_iterdir)
    return folder


@pytest.fixture(scope="session")
def tiny_sets(tiny_plan: dict[str, Any]) -> list[str]:
    """The same keys as options of the command line."""
    return [part for key, value in tiny_plan.items() for part in ("--set", f"{key}={json.dumps(value)}")]


@pytest.fixture(scope="session")
def tiny_scan() -> Callable[..., tuple[Any, Any]]:
    """Makes image (x, y, z) float32 and label (x, y, z) uint8 of case i: a ball (1) with a core (2), in noise."""

    def make(index: int, *, shape: tuple[int, int, int] = (20, 22, 18), spacing_mm: Any = (1, 1, 1)) -> Any:
        rng = np.random.default_rng(index)
        step = np.array(spacing_mm, float)[:, None, None, None]
        at_mm = np.stack(np.meshgrid(*[np.arange(n) for n in shape], indexing="ij")) * step
        center = np.array(shape)[:, None, None, None] * step / 2 + rng.uniform(-1, 1, (3, 1, 1, 1))
        core = center + np.array([2.0, 0, 0])[:, None, None, None]
        label = np.zeros(shape, np.uint8)
        label[((at_mm - center) ** 2).sum(0) < 6**2] = 1
        label[((at_mm - core) ** 2).sum(0) < 3**2] = 2
        image = 100 + 80 * (label == 1) + 160 * (label == 2) + rng.normal(0, 8, shape)
        return image.astype(np.float32), label

    return make


@pytest.fixture(scope="session")
def tiny_msd(tmp_path_factory: pytest.TempPathFactory, tiny_scan: Callable[..., tuple[Any, Any]]) -> Path:
    """Six cases in the Decathlon's layout, two a fold. Copy it before changing it."""
    import nibabel as nib

    root = tmp_path_factory.mktemp("tiny") / "Task99_Tiny"
    entries = []
    for index in range(6):
        names = {"image": f"imagesTr/case_{index}.nii.gz", "label": f"labelsTr/case_{index}.nii.gz"}
        for name, array in zip(names.values(), tiny_scan(index), strict=True):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            nib.save(nib.Nifti1Image(array, np.eye(4)), root / name)
        entries.append({**names, "fold": index % 3})
    description = {
        "name": "Tiny",
        "modality": {"0": "MRI"},
        "labels": {"0": "background", "1": "ball", "2": "core"},
        "numTraining": len(entries),
        "training": entries,
    }
    (root / "dataset.json").write_text(json.dumps(description))
    return root


@pytest.fixture
def own_msd(tiny_msd: Path, tmp_path: Path) -> Path:
    """A copy of the tiny data set that a test may break."""
    return Path(shutil.copytree(tiny_msd, tmp_path / "data"))


@pytest.fixture(scope="session")
def example_diagnosis() -> Callable[[str], Any]:
    """Makes the diagnosis of that name in tests/shared/diagnoses.py."""
    from shared.diagnoses import example

    return example
