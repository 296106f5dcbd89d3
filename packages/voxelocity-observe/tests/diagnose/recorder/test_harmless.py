"""A diagnosis leaves a program's files, weights and random numbers as they would be without it."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from shared.limits import HANGS_S
from voxelocity_observe.diagnose.facts import Facts, read_facts
from voxelocity_observe.diagnose.recorder import conductor
from voxelocity_observe.diagnose.recorder.training import TrainingWatcher
from voxelocity_observe.diagnose.watching.attach import record_here, recording_environment

Recorded = Callable[..., Facts]
SHORT = {"whole": False, "min_steps": 4, "seconds": 0.05, "experiments": True, "experiment_seconds": 0.05}
FEW = {**SHORT, "seconds": 1e-6, "experiment_seconds": 60.0}
"""Steps on resident batches begin before the 20th step, however quick the machine is, and do not end by themselves."""
OLD = b"a model of 300 epochs"


class RandomItems(Dataset[Any]):
    """Items that are augmented by torch's own generator, and kept in a folder if there is one."""

    def __init__(self, num_items: int = 6, folder: Path | None = None) -> None:
        self.num_items = num_items
        self.folder = folder

    def __len__(self) -> int:
        return self.num_items

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.folder is not None:
            (self.folder / f"{index}.txt").write_text("an item")
        return torch.randn(4), index % 2


class Training:
    """A plain loop: dropout, batch statistics, a schedule, an average of the weights and a counter."""

    def __init__(self, items: RandomItems | None = None) -> None:
        torch.manual_seed(0)
        self.items = items or RandomItems()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 0.01)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.99)
        self.average = {name: value.clone() for name, value in self.net.state_dict().items()}
        self.num_steps = 0

    def state(self) -> dict[str, Any]:
        return {
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "average": self.average,
            "random": torch.get_rng_state(),
            "num_steps": self.num_steps,
        }

    def sha256(self) -> str:
        buffer = io.BytesIO()
        torch.save(self.state(), buffer)
        return hashlib.sha256(buffer.getvalue()).hexdigest()

    def run(self, after_step: Callable[[Training], None] = lambda training: None, *, until: int = 1 << 30) -> None:
        while self.num_steps < until:
            for x, y in DataLoader(self.items, batch_size=2, shuffle=True):
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(self.net(x), y).backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
                self.schedule.step()
                for name, value in self.net.state_dict().items():
                    self.average[name] = 0.9 * self.average[name] + 0.1 * value
                self.num_steps += 1
                after_step(self)
                if self.num_steps == until:
                    break


def undiagnosed(num_steps: int, items: RandomItems | None = None) -> str:
    training = Training(items)
    training.run(until=num_steps)
    return training.sha256()


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "last.pt"
    path.write_bytes(OLD)
    os.utime(path, (1.0, 1.0))
    return path


@pytest.mark.parametrize("num_items", [6, 4000], ids=["an epoch ends", "no epoch ends"])
def test_a_plain_training_has_the_state_of_an_undiagnosed_one_after_the_rounds(
    recorded: Recorded, num_items: int
) -> None:
    training = Training(RandomItems(num_items))
    facts = recorded(training.run, **SHORT)
    rounds = [phase for phase, _ in groupby(record.phase for record in facts.steps if record.is_experiment)]
    assert rounds == ["resident", "unchanged"] * 3 if num_items > 6 else rounds[0] == "resident"
    assert sum(step.phase == "resident" for step in facts.steps) >= 5
    assert training.num_steps == facts.num_own_steps < len(facts.steps)
    assert training.sha256() == undiagnosed(facts.num_own_steps, RandomItems(num_items))


def test_a_data_set_that_keeps_its_items_on_disk_may_do_so_in_the_rounds(recorded: Recorded, tmp_path: Path) -> None:
    (folder := tmp_path / "items").mkdir()
    training = Training(RandomItems(4000, folder))
    facts = recorded(training.run, **SHORT)
    assert {"resident", "unchanged"} < {step.phase for step in facts.steps}
    assert facts.refused_writes == ()
    made = sum(step.phase in ("warm-up", "watched", "profiled", "unchanged") for step in facts.steps)
    assert len(list(folder.iterdir())) >= 2 * made


def test_what_a_program_saves_on_its_way_out_is_not_written_and_told(
    recorded: Recorded, old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = Training()

    def program() -> None:
        try:
            training.run()
        finally:
            torch.save(training.state(), old)

    facts = recorded(program, **SHORT)
    assert old.read_bytes() == OLD
    (refused,) = facts.refused_writes
    assert refused.path == str(old)
    assert refused.where.startswith(f"{__file__}:")
    told = capsys.readouterr().err.splitlines()
    assert told[1] == f"voxelocity: not written because the program is being ended: {old} ({refused.where})"
    torch.save(training.state(), old)
    assert old.read_bytes() != OLD, "after the block everything may be written again"


def test_with_keeps_saves_what_is_saved_on_the_way_out_is_the_state_of_that_step(recorded: Recorded, old: Path) -> None:
    training = Training()
    saved: list[str] = []

    def program() -> None:
        try:
            training.run()
        finally:
            saved.append(training.sha256())
            torch.save(training.state(), old)

    facts = recorded(program, **SHORT, keeps_saves=True)
    assert {step.phase for step in facts.steps} == {"warm-up", "watched", "profiled"}
    assert saved == [undiagnosed(len(facts.steps))]
    assert torch.load(old)["num_steps"] == len(facts.steps)
    assert facts.refused_writes == ()
    assert any("it would change what the program saves with --keep-saves" in text for text in facts.not_measured)


def test_a_saving_among_the_steps_on_resident_batches_ends_them_unwritten(recorded: Recorded, tmp_path: Path) -> None:
    training = Training()

    def save(training: Training) -> None:
        if training.num_steps % 10 == 0:
            (tmp_path / f"{training.num_steps}.pt").write_text(training.sha256())

    facts = recorded(lambda: training.run(save), **SHORT, max_steps=9)
    at_the_end = training.sha256()
    saved = {int(path.stem): path.read_text() for path in tmp_path.glob("*.pt")}
    alone: dict[int, str] = {}
    Training().run(
        lambda training_alone: alone.update({training_alone.num_steps: training_alone.sha256()}),
        until=facts.num_own_steps,
    )
    assert at_the_end == alone[facts.num_own_steps]
    assert saved.items() <= alone.items()
    assert [Path(write.path).stem for write in facts.refused_writes] == [str((facts.num_own_steps // 10 + 1) * 10)]


def test_a_checkpoint_that_is_deleted_before_the_next_is_saved_is_never_lost(
    recorded: Recorded, tmp_path: Path
) -> None:
    training, path = Training(), tmp_path / "latest.pt"

    def rotate(training: Training) -> None:
        path.unlink(missing_ok=True)
        with path.open("wb") as file:
            torch.save(training.state(), file)

    facts = recorded(lambda: training.run(rotate), **SHORT)
    assert torch.load(path)["num_steps"] == facts.num_own_steps


def test_without_memory_for_the_state_there_are_no_steps_on_resident_batches(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conductor, "free_bytes", lambda: 1000)
    training = Training()
    facts = recorded(training.run, **SHORT)
    assert {step.phase for step in facts.steps} == {"warm-up", "watched", "profiled"}
    assert training.sha256() == undiagnosed(len(facts.steps))
    (told,) = [text for text in facts.not_measured if text.startswith("the step on batches in memory")]
    assert (
        "weights and optimizer (0.0 GiB) could not be saved first, to be restored afterwards: 0.0 GiB of memory" in told
    )


def test_a_saving_in_a_thread_of_the_programs_is_not_made_either(recorded: Recorded, old: Path) -> None:
    training = Training()

    def save(training: Training) -> None:
        if training.num_steps > 30:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(old.write_bytes, b"in a thread").result()

    facts = recorded(lambda: training.run(save), **FEW)
    assert old.read_bytes() == OLD
    assert facts.ended.reason == "limit"
    assert training.sha256() == undiagnosed(facts.num_own_steps)


def test_an_error_of_the_program_among_resident_steps_leaves_its_state_and_no_file(
    recorded: Recorded, old: Path
) -> None:
    training, phases = Training(), []

    def fail(training: Training) -> None:
        phases.append(training.num_steps)
        if len(phases) > 40:
            raise ValueError("planted")

    def program() -> None:
        try:
            training.run(fail)
        except ValueError:
            old.write_bytes(b"at the error")

    facts = recorded(program, **FEW)
    assert old.read_bytes() == OLD
    assert training.sha256() == undiagnosed(facts.num_own_steps)


@pytest.fixture
def engine() -> Callable[[Training, Path], Any]:
    """An engine of Ignite around the training, with the checkpoints of MONAI."""
    pytest.importorskip("ignite")
    handlers = pytest.importorskip("monai.handlers")
    from ignite.engine import Engine

    def make(training: Training, folder: Path) -> Engine:
        def update(engine: Engine, batch: Any) -> float:
            x, y = batch
            training.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(training.net(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            training.optimizer.step()
            training.num_steps += 1
            return loss.item()

        found = Engine(update)
        saver = handlers.CheckpointSaver(
            save_dir=str(folder),
            save_dict={"net": training.net, "optimizer": training.optimizer, "engine": found},
            save_final=True,
            save_interval=5,
            epoch_level=False,
            n_saved=None,
        )
        saver.attach(found)
        return found

    return make


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_monais_checkpoints_are_those_of_an_undiagnosed_engine_or_not_written(
    recorded: Recorded, engine: Callable[[Training, Path], Any], tmp_path: Path
) -> None:
    from ignite.engine import Events

    def run(folder: Path, until: int = 1 << 30) -> None:
        made = engine(Training(), folder)
        made.add_event_handler(Events.ITERATION_COMPLETED(once=until), made.terminate)
        made.run(DataLoader(RandomItems(), batch_size=2, shuffle=True), max_epochs=10_000)

    facts = recorded(lambda: run(tmp_path / "diagnosed"), **SHORT)
    assert facts.ended.reason == "limit"
    run(tmp_path / "alone", facts.num_own_steps + 1)

    def sums(folder: Path) -> dict[str, str]:
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.pt")}

    diagnosed, alone = sums(tmp_path / "diagnosed"), sums(tmp_path / "alone")
    assert not [name for name in diagnosed if "final" in name]
    assert diagnosed.items() <= alone.items()
    assert len(diagnosed) == facts.num_own_steps // 5
    assert facts.refused_writes


def test_a_program_that_only_predicts_is_ended_by_the_clock(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # Other tests' optimizers may still be alive.
    monkeypatch.setattr(conductor, "has_any", lambda cls: False)
    net = nn.Linear(4, 2).eval()
    predicted: list[torch.Tensor] = []

    def program() -> None:
        with torch.no_grad():
            while True:
                for x, _ in DataLoader(RandomItems(), batch_size=2):
                    predicted.append(net(x))

    facts = recorded(program, whole=False, experiments=True, seconds=0.2)
    assert predicted
    assert (facts.ended.reason, facts.ended.note) == ("limit", "no training step was made in 0.2 s")
    assert [interval.kind for interval in facts.passes] == ["validation"]
    assert capsys.readouterr().err == (
        "voxelocity: no training step was made in 0.2 s, so the program is ended here.\n"
    )


@pytest.mark.parametrize("failing", ["write_sums", "_look_at"])
def test_an_error_of_the_recorder_never_reaches_the_program(
    failing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: Any) -> None:
        raise AttributeError("planted")

    monkeypatch.setattr(TrainingWatcher, failing, fail)
    training = Training()
    with record_here(tmp_path, warmup_steps=1, warmup_seconds=0.0, **{**SHORT, "experiments": False}):
        training.run()
    assert training.num_steps > 2
    ended = read_facts(tmp_path).ended
    assert ended.reason == "limit"
    assert "AttributeError: planted" in (tmp_path / "errors.txt").read_text()


def test_a_leader_that_cannot_write_its_plan_trains_to_its_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(conductor, "rank_and_world_size", lambda: (0, 2))
    monkeypatch.setattr(conductor, "announce", full)
    training = Training()
    with record_here(tmp_path, warmup_steps=1, warmup_seconds=0.0, **{**SHORT, "experiments": False}):
        training.run(until=200)
    assert training.num_steps == 200
    assert (tmp_path / "errors.txt").read_text().count("could not continue the recording") == 1


def test_ctrl_c_in_an_experiment_leaves_the_end_of_the_recording(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TrainingWatcher, "write_experiments", interrupt)
    training = Training()
    with pytest.raises(KeyboardInterrupt), record_here(tmp_path, warmup_steps=1, warmup_seconds=0.0, **SHORT):
        training.run()
    facts = read_facts(tmp_path)
    assert facts.ended.reason == "limit"
    assert training.sha256() == undiagnosed(facts.num_own_steps)


def test_a_program_that_ends_while_it_is_profiled_leaves_no_profiler_and_no_trace(
    recorded: Recorded, tmp_path: Path
) -> None:
    training = Training()
    facts = recorded(lambda: training.run(until=4), whole=False, profile=True, seconds=1e-6)
    assert facts.steps[-1].phase == "profiled"
    assert facts.ended.reason == "program"
    assert not torch._C._autograd._profiler_enabled()
    assert not list(tmp_path.rglob("trace*"))


PREDICTING = """
import atexit, sys, time, torch
from pathlib import Path
net = torch.nn.Linear(4, 2).eval()
atexit.register(lambda: Path("at exit.txt").write_text("1"))
with torch.no_grad():
    net(torch.ones(1, 4))
    try:
        print("ready", flush=True)
        while True:
            if sys.argv[1] in ("network", "slow end"):
                net(torch.ones(1, 4))
            elif sys.argv[1] == "python":
                sum(range(1000))
    finally:
        Path("prediction.txt").write_text("1")
        if sys.argv[1] == "slow end":
            print("ending", flush=True)
            time.sleep(100)
"""


def predict(tmp_path: Path, what: str, *, seconds: float) -> subprocess.Popen[str]:
    (tmp_path / "predict.py").write_text(PREDICTING)
    command = [sys.executable, "predict.py", what]
    chosen = recording_environment(tmp_path / "recording", seconds=seconds)
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=chosen, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.nightly
@pytest.mark.timeout(180)
@pytest.mark.parametrize("what", ["network", "python"])
def test_a_command_that_only_predicts_is_ended_wherever_it_is_and_writes_nothing_more(
    tmp_path: Path, what: str
) -> None:
    child = predict(tmp_path, what, seconds=2.0)
    _, told = child.communicate(timeout=HANGS_S)
    assert child.returncode == 0
    assert "Traceback" not in told
    assert "no training step was made in 2 s, so the program is ended here." in told
    assert told.count("not written because the program is being ended") == 2
    assert not list(tmp_path.glob("*.txt"))
    facts = read_facts(tmp_path / "recording")
    assert facts.ended.reason == "limit"
    assert [Path(write.path).name for write in facts.refused_writes] == ["prediction.txt", "at exit.txt"]


@pytest.mark.nightly
@pytest.mark.timeout(180)
@pytest.mark.parametrize("what", ["network", "slow end"])
def test_ctrl_c_once_and_twice_reaches_a_command_that_only_predicts_as_without_us(tmp_path: Path, what: str) -> None:
    child = predict(tmp_path, what, seconds=600.0)
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGINT)
    if what == "slow end":
        assert child.stdout.readline() == "ending\n"
        child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=HANGS_S)
    assert child.returncode != 0
    assert "KeyboardInterrupt" in told
    assert (tmp_path / "prediction.txt").read_text() == "1", "its files are its own"
    assert (tmp_path / "at exit.txt").read_text() == "1"
    facts = read_facts(tmp_path / "recording")
    assert facts.ended.reason == "error"
