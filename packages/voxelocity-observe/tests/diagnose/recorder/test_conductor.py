"""Phases of a recording: warm-up, counted, profiled and resident steps, experiments, and the end of the program."""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
import sys
import threading
import time
import weakref
from collections import OrderedDict, UserDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from shared.limits import HANGS_S
from voxelocity_observe.diagnose.accounting import between_s
from voxelocity_observe.diagnose.facts import Facts
from voxelocity_observe.diagnose.recorder import conductor, experiments, recording, rounds
from voxelocity_observe.diagnose.recorder.process import Settings
from voxelocity_observe.diagnose.recorder.rounds import Resident, StepSchedule, copy_of

Recorded = Callable[..., Facts]
SHORT = {"whole": False, "min_steps": 4, "min_seconds": 0.0, "experiments": True, "experiment_seconds": 0.1}


class SlowItems(torch.utils.data.Dataset[Any]):
    """Items that take 10 ms each."""

    def __init__(self, num_items: int = 4) -> None:
        self.num_items = num_items

    def __len__(self) -> int:
        return self.num_items

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(0.010)
        return {"image": torch.ones(4), "label": index % 2, "name": f"case {index}"}


@pytest.fixture
def endless(net: nn.Module) -> Callable[[Any], Callable[[], None]]:
    """A program that would never end: epochs over a loader, and a validation after each."""

    def make(loader: Any) -> Callable[[], None]:
        optimizer = torch.optim.SGD(net.parameters(), 0.1)

        def program() -> None:
            while True:
                net.train()
                for batch in loader:
                    batch["image"] = batch["image"] * 2
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(net(batch["image"]), batch["label"]).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                net.eval()
                with torch.no_grad():
                    net(torch.ones(1, 4))

        return program

    return make


def phases(facts: Facts) -> list[str]:
    return list(dict.fromkeys(step.phase for step in facts.steps))


def test_program_that_trains_in_a_thread_is_ended_without_a_traceback(
    endless: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    later: list[str] = []
    # As it is outside of pytest.
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    monkeypatch.setattr(recording, "end_process_later", lambda folder: later.append("in a minute"))
    options = {**SHORT, "experiments": False, "profile": False, "warmup_steps": 1, "warmup_seconds": 0.0}
    watching = recording.Recording(Settings(str(tmp_path), **options), ends_process=True)  # type: ignore[arg-type]
    watching.start()
    quiet = sys.unraisablehook
    try:
        thread = threading.Thread(target=endless(DataLoader(SlowItems(), batch_size=2)))
        thread.start()
        thread.join(timeout=HANGS_S)
        assert not thread.is_alive()
    finally:
        watching.stop("program")
        watching._guard.disarm()
        sys.unraisablehook = quiet
    told = capsys.readouterr().err
    assert told.endswith("steps were counted, which is enough; the program is ended here.\n")
    assert "Traceback" not in told
    assert later == ["in a minute"]


def test_program_is_ended_after_steps_on_resident_batches_and_the_experiments(
    recorded: Recorded, endless: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = recorded(endless(DataLoader(SlowItems(), batch_size=2)), **SHORT)
    assert phases(facts)[:4] == ["warm-up", "watched", "profiled", "resident"]
    assert (facts.ended.reason, facts.ended.note) == ("limit", f"{len(facts.counted)} steps were counted")
    assert capsys.readouterr().err == (
        f"voxelocity: {len(facts.counted)} steps were counted, which is enough; the program is ended here.\n"
    )
    done = {experiment.name: experiment for experiment in facts.experiments}
    # On a CPU with 16-bit units the network alone follows.
    assert list(done)[:7] == ["resident batch", "loader", "items", "collate", "copy", "storage", "storage, page cache"]
    assert len(done["resident batch"].seconds) >= 5
    assert sorted(done["resident batch"].seconds)[2] < 0.010
    assert min(done["loader"].seconds) >= 0.020
    assert 0.010 <= min(done["items"].seconds) < 0.020
    assert len(done["collate"].seconds) >= 1
    assert done["copy"].note == "the network is not on a CUDA device"
    assert {"validation", "epoch start"} <= {p.kind for p in facts.passes}
    assert 0 < facts.cost.seconds < facts.cost.of_s


def test_ceiling_without_a_known_loader_is_told_to_be_impossible(recorded: Recorded, learn: Any) -> None:
    def program() -> None:
        while True:
            learn()

    facts = recorded(program, **{**SHORT, "seconds": 0.05})
    assert phases(facts) == ["warm-up", "watched", "profiled"]
    (note,) = [text for text in facts.not_measured if text.startswith("the step on batches")]
    assert note.startswith(
        "the step on batches in memory, the loader alone, the data set alone, putting a batch together, "
        "copying a batch to the device: the program's batches do not come from a known loader "
    )


def test_batches_too_large_to_keep_are_told(recorded: Recorded, endless: Any) -> None:
    facts = recorded(endless(DataLoader(SlowItems(), batch_size=2)), **SHORT, kept_bytes=8)
    (note,) = [text for text in facts.not_measured if text.startswith("the step on batches")]
    assert note == (
        "the step on batches in memory: no batch could be kept: it is larger than 0.0 GiB, or none was fetched"
    )


def test_recording_goes_on_until_a_validation_was_counted_or_the_time_is_over(recorded: Recorded, learn: Any) -> None:
    def program() -> None:
        while True:
            time.sleep(0.005)
            learn()

    facts = recorded(program, **{**SHORT, "experiments": False}, seconds=0.2)
    assert 0.2 <= sum(step.seconds for step in facts.counted) < 0.4
    assert len(facts.counted) > 4
    assert "the ceiling: no experiment was done because none was requested" in facts.not_measured


def test_whole_program_runs_to_its_end_and_has_its_own_results(recorded: Recorded, items: Any) -> None:
    def train() -> torch.Tensor:
        torch.manual_seed(3)
        net = nn.Linear(4, 2)
        optimizer = torch.optim.Adam(net.parameters(), 0.1)
        for _ in range(4):
            for x, y in DataLoader(items, batch_size=2, shuffle=True):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        return net.weight.detach().clone()

    results = [train()]
    facts = recorded(lambda: results.append(train()), min_steps=2, seconds=0.001)
    assert torch.equal(results[0], results[1])
    assert len(facts.steps) == 16
    assert facts.ended.reason == "program"


def test_program_that_makes_very_many_steps_runs_on_unwatched(recorded: Recorded, learn: Any) -> None:
    num_steps = []

    def program() -> None:
        for _ in range(20):
            learn()
            num_steps.append(1)

    facts = recorded(program, max_steps=6)
    assert len(num_steps) == 20
    assert len(facts.counted) == 6
    assert facts.ended.note == "6 steps were counted; the program continued unwatched"


@pytest.mark.usefixtures("sleeps_cost_time")
def test_warm_up_lasts_until_step_times_settle(recorded: Recorded, learn: Any) -> None:
    def program() -> None:
        for seconds in (0.2, 0.1, 0.05, 0.05, 0.05, 0.05, 0.05):
            time.sleep(seconds)
            learn()

    facts = recorded(program, warmup_steps=3, warmup_seconds=60.0)
    assert [step.phase for step in facts.steps] == ["warm-up"] * 5 + ["watched"] * 2


def test_kept_batches_are_not_what_the_program_changes() -> None:
    batch = {"image": torch.zeros(2), "more": [(torch.zeros(1), "text")]}
    copied = copy_of(batch)
    batch["image"] += 1
    assert copied["image"].tolist() == [0.0, 0.0]
    assert isinstance(copied["more"][0], tuple)
    shared = copy_of(batch, copies_tensors=False)
    assert shared is not batch
    assert shared["image"] is batch["image"]


class NoCopy(UserDict[str, Any]):
    """A batch of someone's that refuses to be copied."""

    def __copy__(self) -> NoCopy:
        raise RuntimeError("no")


@pytest.mark.parametrize("kind", [OrderedDict, UserDict])
def test_what_a_loop_removes_from_a_batch_is_there_the_next_time(kind: Any) -> None:
    batch = kind(image=torch.zeros(2), label=torch.ones(1))
    kept = copy_of(batch)
    for _ in range(2):
        given = copy_of(kept, copies_tensors=False)
        assert type(given) is kind
        assert given.pop("label").tolist() == [1.0]
    batch["image"] += 1
    assert kept["image"].tolist() == [0.0, 0.0]
    refusing = NoCopy(image=1)
    assert copy_of(refusing) is refusing


def test_batches_are_kept_as_far_as_there_is_room_and_given_out_in_turn() -> None:
    entry: Any = SimpleNamespace(key=7)
    resident = Resident(max_bytes=20)
    for value in range(3):
        resident.keep(entry, torch.full((2,), float(value)))
    assert resident.num_bytes == 16
    assert resident.replay(entry) is None
    resident.is_replaying = True
    given = [resident.replay(entry) for _ in range(3)]
    assert [batch[0].tolist() for batch in given if batch] == [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]


def test_state_is_kept_before_the_first_batch_whatever_other_loaders_gave_before() -> None:
    record = dataclasses.make_dataclass("Numbered", [("image", Any), ("step", int)])
    entries: list[Any] = [SimpleNamespace(key=key) for key in (1, 2)]
    large, small = entries
    resident, begun = Resident(max_bytes=8), list[str]()
    resident.begins = lambda: begun.append("kept")
    resident.keep(large, record(torch.zeros(100), 0))
    resident.keep(small, torch.zeros(1))
    resident.is_replaying = True
    assert resident.replay(large) is None
    resident.renumber(large, record(torch.zeros(100), 1))
    assert not begun, "its batches are the program's own"
    assert [resident.replay(small) is not None, resident.replay(small) is not None] == [True, True]
    assert begun == ["kept"]


@pytest.mark.parametrize("is_frozen", [True, False])
def test_batches_that_know_their_step_go_on_counting_and_are_copied_whole(is_frozen: bool) -> None:
    record = dataclasses.make_dataclass("Numbered", [("image", Any), ("step", int)], frozen=is_frozen)

    entry: Any = SimpleNamespace(key=7)
    resident = Resident(max_bytes=8)
    batches = [record(torch.full((1,), float(step)), step) for step in (10, 11, 12)]
    for batch in batches:
        resident.keep(entry, batch)
    batches[0].image.add_(100)
    resident.is_replaying = True
    given = [resident.replay(entry) for _ in range(3)]
    assert [(batch[0].step, batch[0].image.item()) for batch in given if batch] == [(13, 10.0), (14, 11.0), (15, 10.0)]
    assert [batch.step for batch in batches] == [10, 11, 12], "the program's own stay as they are"
    new = record(torch.zeros(1), 13)
    resident.renumber(entry, new)
    assert new.step == 16, "a new batch among them goes on counting too"
    (following,) = resident.replay(entry) or ()
    assert following.step == 17


def test_ranks_agree_on_the_step_at_which_to_end(tmp_path: Path) -> None:
    assert rounds.read_announcement(str(tmp_path)) is None
    plan = StepSchedule(40, 43, rounds=2, resident=3, refilled=1, unchanged=2)
    rounds.announce(str(tmp_path), plan)
    assert rounds.read_announcement(str(tmp_path)) == plan
    assert rounds.ahead(0.1) == 30
    assert rounds.ahead(10.0) == 5
    (tmp_path / "agreed.json").write_text("{torn")
    assert rounds.read_announcement(str(tmp_path)) is None


@pytest.mark.usefixtures("sleeps_cost_time")
def test_the_leader_searches_for_the_state_outside_of_what_is_counted(
    recorded: Recorded, learn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[int] = []

    def search(torch: Any, generators: list[Any]) -> Any:
        time.sleep(5.0)
        searches.append(1)
        return SimpleNamespace(num_bytes=0)

    monkeypatch.setattr(conductor, "rank_and_world_size", lambda: (0, 2))
    monkeypatch.setattr(conductor, "KeptState", search)
    monkeypatch.setattr(rounds, "_AHEAD_S", 0.0)

    def program() -> None:
        while True:
            time.sleep(0.1)
            learn()

    facts = recorded(program, **{**SHORT, "seconds": 1.0})
    assert len(facts.counted) >= 10
    assert searches == [1]
    assert between_s(facts) < 1.0


def test_steps_of_the_experiments_take_turns() -> None:
    plan = StepSchedule(40, 43, rounds=2, resident=3, refilled=1, unchanged=2)
    one_round = ["resident"] * 3 + ["refilled"] + ["unchanged"] * 2
    assert [plan.phase_after(number) for number in range(13)] == [*one_round, *one_round, ""]


def test_resident_and_unchanged_steps_alternate_and_no_epoch_ends_meanwhile(recorded: Recorded, endless: Any) -> None:
    """So that both are of the same load of the machine, and nothing is validated or saved in an experiment."""
    long, short = (DataLoader(SlowItems(num_items), batch_size=2) for num_items in (200, 18))
    options = {**SHORT, "min_steps": 2, "seconds": 0.05}
    facts = recorded(endless(long), **options)
    phase_runs = [phase for phase, _ in itertools.groupby(step.phase for step in facts.steps)]
    assert phase_runs == ["warm-up", "watched", "profiled", *["resident", "unchanged"] * 3]
    slow, quick = ([s.seconds for s in facts.steps if s.phase == phase] for phase in ("unchanged", "resident"))
    assert min(slow) >= 0.020 > statistics.median(quick)
    facts = recorded(endless(short), **options)
    assert {"resident", "unchanged"} <= set(phases(facts))
    assert facts.steps[-1].phase == "resident", "the epoch has no further batch"
    assert not facts.passes or facts.passes[-1].start_s < facts.counted[-1].start_s


def test_files_that_were_read_are_read_again(tmp_path: Path) -> None:
    scan = tmp_path / "scan.nii.gz"
    scan.write_bytes(b"x" * 100_000)
    folder = tmp_path / "recording"
    folder.mkdir()
    event = {"event": "files", "time_s": 1.0, "kinds": {}, "largest": [str(scan), str(tmp_path / "gone")]}
    (folder / "1-a.jsonl").write_text(json.dumps(event, separators=(",", ":")) + '\n{"event":"files","tor')
    (folder / "2-b.jsonl").write_text(json.dumps(event, separators=(",", ":")) + "\n")
    assert experiments.files_read(str(folder)) == [str(scan), str(tmp_path / "gone")]
    cold, warm = experiments.storage_alone(experiments.files_read(str(folder)), 1.0)
    assert (cold["name"], warm["name"]) == ("storage", "storage, page cache")
    assert cold["unit"] == warm["unit"] == "byte"
    assert len(cold["seconds"]) == 1
    assert 0 < warm["seconds"][0] < 1e-5
    assert cold["note"] == "1 file, 0.1 MiB"


def test_of_a_file_that_holds_a_whole_data_set_a_part_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "_MAX_STORAGE_BYTES", 6 << 20)
    with (tmp_path / "all.h5").open("wb") as file:
        file.truncate(1 << 30)
    cold, warm = experiments.storage_alone([str(tmp_path / "all.h5")], 60.0)
    assert cold["note"] == warm["note"] == "1 file, 8.0 MiB"
    cold, _ = experiments.storage_alone([str(tmp_path / "all.h5")], 0.0)
    assert cold["note"] == "1 file, 4.0 MiB"


@pytest.mark.parametrize(
    ("loader", "why"), [(None, "the program had not made the next loader"), ([], "the next one gave no batch")]
)
def test_a_loader_whose_epoch_is_over_tells_why_it_was_not_timed(loader: Any, why: str) -> None:
    entry: Any = SimpleNamespace(iterator=iter(()), loader=loader, described={}, num_ahead=0)
    assert experiments.loader_alone(entry, 0.1)["note"] == f"the epoch ended, and {why}"


def test_no_more_items_than_a_batch_are_kept() -> None:
    class Items:
        alive = most = 0

        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> Any:
            item = torch.zeros(1)
            Items.alive += 1
            weakref.finalize(item, self.gone)
            Items.most = max(Items.most, Items.alive)
            return item

        def gone(self) -> None:
            Items.alive -= 1

    entry: Any = SimpleNamespace(dataset=Items(), collate=len, described={"batch_size": 2})
    items, collate = experiments.items_and_collate(entry, 60.0)
    assert len(items["seconds"]) == 20
    assert collate["seconds"]
    assert Items.most <= 4


def test_data_set_that_raises_in_an_experiment_is_told() -> None:
    def fail(items: Any) -> Any:
        raise KeyError("image")

    entry: Any = SimpleNamespace(dataset=(1, 2, 3), collate=fail, described={"batch_size": 2})
    items, collate = experiments.items_and_collate(entry, 0.1)
    assert len(items["seconds"]) == 3
    assert collate["note"] == "the collate function raised KeyError: 'image'"
    entry.dataset = iter(())
    assert experiments.items_and_collate(entry, 0.1)[0]["note"] == ("items of a tuple_iterator cannot be indexed")
    entry.dataset = None
    assert experiments.items_and_collate(entry, 0.1)[0]["note"] == "the loader has no data set"
