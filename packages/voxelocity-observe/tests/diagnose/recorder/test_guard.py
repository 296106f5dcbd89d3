"""What the program may not write while it trains on resident batches or is being ended."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from voxelocity_observe.diagnose.recorder.guard import Guard


class Refused(SystemExit):
    """Stands in for what ends the program."""


@pytest.fixture
def refused() -> list[str]:
    return []


@pytest.fixture
def guard(tmp_path: Path, refused: list[str]) -> Iterator[Guard]:
    def refuse(path: str) -> None:
        refused.append(path)
        raise Refused

    one = Guard(str(tmp_path / "recording"), refuse)
    yield one
    one.disarm()


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A file that is older than this process."""
    path = tmp_path / "last.pt"
    path.write_bytes(b"300 epochs")
    os.utime(path, (1.0, 1.0))
    return path


def written_through_a_move(path: Path) -> None:
    part = path.with_name("made before.part")
    os.replace(part, path)


def saved_by_safetensors(path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"weight": torch.ones(2)}, path)


def opened(write: Callable[[Any], Any]) -> Callable[[Path], None]:
    def writer(path: Path) -> None:
        with path.open("wb") as file:
            write(file)

    return writer


WRITERS: dict[str, Callable[[Path], Any]] = {
    "torch.save": lambda path: torch.save({"weight": torch.ones(2)}, path),
    "torch.save, as a text": lambda path: torch.save({"weight": torch.ones(2)}, str(path)),
    "open and torch.save": opened(lambda file: torch.save({}, file)),
    "torch.jit.save": lambda path: torch.jit.save(torch.jit.script(torch.nn.ReLU()), path),  # type: ignore[no-untyped-call]
    "safetensors": saved_by_safetensors,
    "pickle": opened(lambda file: pickle.dump({}, file)),
    "numpy.save": opened(lambda file: np.save(file, np.ones(2))),
    "a text": lambda path: path.write_text("1"),
    "os.open": lambda path: os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)),
    "a move": written_through_a_move,
    "a copy": lambda path: shutil.copyfile(path.with_name("made before.part"), path),
    "os.truncate": lambda path: os.truncate(path, 0),
    "os.remove": os.remove,
}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("writer", WRITERS)
def test_an_older_file_stays_byte_by_byte_whatever_writes_it(
    guard: Guard, refused: list[str], old: Path, writer: str
) -> None:
    old.with_name("made before.part").write_bytes(b"new")
    if writer == "safetensors":
        pytest.importorskip("safetensors.torch")
    guard.arm()
    with pytest.raises(Refused):
        WRITERS[writer](old)
    assert refused == [str(old)]
    assert old.read_bytes() == b"300 epochs"
    guard.disarm()
    WRITERS[writer](old)
    assert not old.exists() or old.read_bytes() != b"300 epochs"
    assert len(refused) == 1


def test_files_are_guarded_from_a_working_folder_that_was_deleted(
    guard: Guard, refused: list[str], old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (gone := old.parent / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    guard.arm()
    with pytest.raises(Refused):
        Path("..", old.name).write_bytes(b"new")
    assert refused == [f"../{old.name}"]
    assert old.read_bytes() == b"300 epochs"


def test_a_folder_of_old_files_is_not_deleted(guard: Guard, refused: list[str], old: Path) -> None:
    folder = old.parent / "run"
    folder.mkdir()
    shutil.copy2(old, folder)
    os.utime(folder, (1.0, 1.0))
    guard.arm()
    with pytest.raises(Refused):
        shutil.rmtree(folder)
    assert refused == [str(folder)]
    assert (folder / "last.pt").read_bytes() == b"300 epochs"


def test_what_is_no_result_goes_on_being_written(guard: Guard, refused: list[str], tmp_path: Path) -> None:
    (tmp_path / "recording").mkdir()
    (tmp_path / "__pycache__").mkdir()
    log = (tmp_path / "log.csv").open("w")
    lock = tmp_path / "made by this process.lock"
    lock.write_text("")
    guard.arm()
    log.write("1, 2\n")
    log.close()
    with (tmp_path / "log.csv").open("a") as appended:
        appended.write("3, 4\n")
    buffer = io.BytesIO()
    torch.save({"weight": torch.ones(2)}, buffer)
    (tmp_path / "recording" / "1.jsonl").write_text("{}")
    (tmp_path / "__pycache__" / "module.pyc").write_bytes(b"")
    with open(os.devnull, "w") as nothing:
        nothing.write("x")
    lock.unlink()
    for folder in (tmp_path, tmp_path / "__pycache__"):
        tempfile.TemporaryFile(dir=folder).close()
    with guard.lifted():
        (tmp_path / "cache.pt").write_text("by a data set")
    assert refused == []
    assert (tmp_path / "log.csv").read_text() == "1, 2\n3, 4\n"
    assert len(buffer.getvalue()) > 100


def test_another_thread_is_refused_too(guard: Guard, refused: list[str], old: Path) -> None:
    guard.arm()

    def write() -> None:
        with pytest.raises(Refused):
            old.write_text("1")

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert refused == [str(old)]


def test_all_writers_are_put_back(guard: Guard) -> None:
    before = torch._C.PyTorchFileWriter
    guard.arm()
    guard.arm()
    assert torch._C.PyTorchFileWriter is not before
    guard.disarm()
    guard.disarm()
    assert torch._C.PyTorchFileWriter is before
