"""SECURITY.md's list of what each command trusts, with a crafted folder for each row.

Whatever a command does with such a folder, it runs none of its code, touches no file outside and connects to nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import sys
from pathlib import Path

import pytest
import yaml

import voxelocity as vx
from voxelocity.data.cache.entry_files import SUFFIX
from voxelocity.training import train
from voxelocity_observe.core.environment import CHECKOUT
from voxelocity_observe.core.errors import InputError

ROOT = CHECKOUT
URL = "http://192.0.2.1:9/set"
"""Of the network that documentation has (RFC 5737); no connection to it is tried."""
KEYS = {"train.steps": 1, "planner.measure": "never"}


@pytest.fixture(scope="module")
def trained(tiny_msd, tiny_plan, tmp_path_factory):
    """A finished run of one step."""
    place = tmp_path_factory.mktemp("trained") / "run"
    train(vx.open(tiny_msd), place, device="cpu", overrides={**tiny_plan, **KEYS})
    return place


class Victim:
    """Files that no command may touch, a canary that no code may make, and a network that nobody may use."""

    def __init__(self, place, monkeypatch):
        self.place, self.canary, self.connections = place, place.parent / "ran", []
        for name in ("home/notes.txt", "home/keep/step_000000001.pt", "home/keep/000.log", "home/keep/events.jsonl"):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text("precious")
        self.before = self.digests()
        code = place.parent / "code"
        code.mkdir()
        (code / "evil_module.py").write_text(f"import os\nos.makedirs({str(self.canary)!r}, exist_ok=True)\n")
        monkeypatch.syspath_prepend(code)
        monkeypatch.setattr(socket.socket, "connect", self.connect)
        monkeypatch.setattr(socket, "getaddrinfo", self.connect)

    def connect(self, *arguments, **options):
        self.connections.append(arguments)
        raise OSError("no network in this test")

    def digests(self):
        return {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            for path in sorted(self.place.rglob("*"))
        }

    def assert_unharmed(self):
        assert not self.canary.exists(), "code of the folder was run"
        assert "evil_module" not in sys.modules
        assert not self.connections, f"it tried to connect: {self.connections}"
        assert self.digests() == self.before, "files outside of the folder were touched"


@pytest.fixture
def victim(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return Victim(tmp_path / "victim", monkeypatch)


@pytest.fixture
def data(own_msd, victim):
    """A data set with everything in it that was once followed, connected to or run."""
    index = {"url": URL, "files": {str(victim.place / "home/notes.txt"): {"num_bytes": 1}, "../x": {"num_bytes": 1}}}
    (own_msd / ".voxelocity-remote.json").write_text(json.dumps(index))
    (own_msd / "conf").symlink_to(victim.place / "home")
    algorithm = own_msd / "segresnet_0"
    (algorithm / "scripts").mkdir(parents=True)
    (algorithm / "algo_object.json").write_text(
        json.dumps({"_target_": "evil_module.Algo", "template_path": str(own_msd), "_state_": {}})
    )
    (own_msd / "sitecustomize.py").write_text("import evil_module")
    return own_msd


@pytest.fixture
def run(trained, data, tmp_path):
    """A copy of the run, on the crafted data set."""
    place = Path(shutil.copytree(trained, tmp_path / "run"))
    change(place, lambda record: record["dataset"].update(path=str(data)))
    return place


def change(run, how):
    record = yaml.safe_load((run / "run.yaml").read_text())
    how(record)
    (run / "run.yaml").write_text(yaml.safe_dump(record, sort_keys=False))


def unfinish(run):
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    (run / "events.jsonl").write_text("".join(line for line in lines if '"run_finished"' not in line))


def loose(data):
    """The scans and labels without a description."""
    (data / "dataset.json").unlink()
    return data


def work(data, victim):
    """A work folder of Auto3DSeg that was customized, whose folder of configurations is a link."""
    kept = data / "tune" / "originals" / "segresnet_0"
    (kept / "configs").mkdir(parents=True)
    for name in ("configs/hyper_parameters.yaml", "algo_object.json"):
        (kept / name).write_text("{}")
    (victim.place / "home" / "keep" / "hyper_parameters.yaml").write_text("precious")
    victim.before = victim.digests()
    (data / "segresnet_0" / "configs").symlink_to(victim.place / "home" / "keep")
    return data


def cache(data, victim):
    """A folder that looks like a cache, of links and bytes of any kind."""
    folder = data.parent / "handed"
    (folder / "locks").mkdir(parents=True)
    (folder / f"{'0' * 40}{SUFFIX}").symlink_to(victim.place / "home" / "notes.txt")
    (folder / f"{'1' * 40}{SUFFIX}").symlink_to(victim.place / "home" / "keep")
    (folder / f"{'2' * 40}{SUFFIX}").write_bytes(b"\x80\x04cos\nsystem\n" * 50)
    (folder / f"{'3' * 40}{SUFFIX}").mkdir()
    os.mkfifo(folder / f"{'4' * 40}{SUFFIX}")
    (folder / ".uses").symlink_to(victim.place / "home" / "keep")
    return folder


MADE = {
    "loose": lambda data, victim: loose(data),
    "work": work,
    "cache": cache,
}


def effects(run, victim):
    config = {"factory": "os:makedirs", "probability": 1.0, "settings": {"name": str(victim.canary)}}
    change(run, lambda record: record["plan"]["data"]["augment"].update(effects=[config]))


def factory(run, victim):
    change(run, lambda record: record["plan"]["network"].update(name="custom", factory="evil_module:net"))
    model = json.loads((run / "model.json").read_text())
    model["network"].update(name="custom", factory="evil_module:net")
    (run / "model.json").write_text(json.dumps(model))


def cache_on_a_server(run, victim):
    change(run, lambda record: record["plan"]["data"]["cache"].update(tier="disk", folder=URL))


def cache_elsewhere(run, victim):
    cache = {"tier": "disk", "folder": str(victim.place / "home"), "folder_max_bytes": 1}
    change(run, lambda record: record["plan"]["data"]["cache"].update(cache))


def data_set_on_a_server(run, victim):
    change(run, lambda record: record["dataset"].update(path=URL))


def start_on_a_server(run, victim):
    shutil.rmtree(run / "checkpoints")
    change(run, lambda record: record.update(start={"folder": URL, "weights_sha256": "0" * 64}))


def links(run, victim):
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").symlink_to(victim.place / "home" / "keep")


def link_of_events(run, victim):
    (victim.place / "home" / "events.jsonl").write_bytes((run / "events.jsonl").read_bytes() + b"torn")
    victim.before = victim.digests()
    (run / "events.jsonl").unlink()
    (run / "events.jsonl").symlink_to(victim.place / "home" / "events.jsonl")


def trackers(run, victim):
    (run / "tracking").symlink_to(victim.place / "home")


def study(run, victim):
    (run / "tune").mkdir()
    (run / "tune" / "trials").symlink_to(victim.place / "home" / "keep")


def tune_folder(run, victim):
    (run / "tune").symlink_to(victim.place / "home" / "keep")


ATTACKS = (
    effects, factory, cache_on_a_server, cache_elsewhere, data_set_on_a_server, start_on_a_server, links,
    link_of_events, trackers, study, tune_folder,
)  # fmt: skip
ROWS = {
    "init FOLDER": [["init", "{loose}"]],
    "plan DATASET": [["plan", "{data}"]],
    "train DATASET -o RUN": [["train", "{data}", "-o", "out", "--device", "cpu", "{sets}"]],
    "train --resume RUN": [["train", "--resume", "{run}", "--device", "cpu"]],
    "train --from MODEL": [["train", "{data}", "-o", "out", "--from", "{run}", "--device", "cpu", "--fold", "all"]],
    "train --config RUN/run.yaml": [["train", "{data}", "-o", "out", "--config", "{run}/run.yaml", "--device", "cpu"]],
    "tune DATASET": [["tune", "{data}", "--trials", "1", "--device", "cpu"]],
    "tune RUN": [["tune", "{run}", "--trials", "1", "--device", "cpu"]],
    "tune WORK --undo": [["tune", "{work}", "--undo"]],
    "predict MODEL SCANS -o OUT": [
        ["predict", "{run}", "{data}/imagesTr/case_0.nii.gz", "-o", "out", "--device", "cpu"]
    ],
    "export RUN -o OUT": [["export", "{run}", "-o", "out", "--to", "onnx", "--device", "cpu", "--cases", "0"]],
    "evaluate PREDICTIONS TRUTH": [
        ["evaluate", "{data}/labelsTr", "{data}", "-o", "out"],
        ["evaluate", "{run}", "-o", "out"],
    ],
    "report FOLDER": [["report", "{run}"]],
    "diagnose FOLDER": [["diagnose", "{run}"]],
    "recipe NAME DATA -o OUT": [["recipe", "spleen", "predict", "{data}", "-o", "{run}", "--device", "cpu"]],
    "cache ls, verify, clear FOLDER": [
        ["cache", "ls", "{cache}"],
        ["cache", "verify", "{cache}"],
        ["cache", "clear", "{cache}", "--yes"],
    ],
    "nnunet preprocess DATASET": [["nnunet", "preprocess", "{data}"]],
    "cache build DATASET": [["cache", "build", "{data}", "--device", "cpu", "{sets}", "--set", "data.cache.tier=disk"]],
}
"""What is called for each row."""
NAMED = {
    "tune WORK --auto3dseg",
    "diagnose -- COMMAND",
    "monitor COMMAND",
    "launch COMMAND",
    "nnunet trainers",
    "nnunet install",
    "demo",
    "bench",
    "doctor",
    "explain",
}
"""Rows of commands that take no folder of others, or whose command line names code."""
OF_RUNS = (
    "train --resume RUN", "train --from MODEL", "train --config RUN/run.yaml", "tune RUN", "predict MODEL SCANS -o OUT",
    "export RUN -o OUT", "report FOLDER", "diagnose FOLDER",
)  # fmt: skip
QUICK = {
    ("train --resume RUN", attack) for attack in ATTACKS
} | {
    ("train --from MODEL", factory), ("train --config RUN/run.yaml", effects),
    ("train --config RUN/run.yaml", cache_on_a_server), ("tune RUN", effects), ("tune RUN", cache_on_a_server),
    ("tune RUN", data_set_on_a_server), ("tune RUN", study), ("tune RUN", tune_folder),
    ("predict MODEL SCANS -o OUT", factory), ("export RUN -o OUT", factory),
    ("export RUN -o OUT", data_set_on_a_server), ("report FOLDER", factory),
}  # fmt: skip


@pytest.fixture
def call(voxelocity, monkeypatch, tiny_sets, data, run, victim):
    """Runs the commands of a row; a tuning stops where its trials would begin."""

    def stop(*arguments, **options):
        raise InputError("stopped before the first trial")

    monkeypatch.setattr("voxelocity.tuning.study.run_trial", stop)

    def call(row, *more):
        ended = []
        places = {"data": data, "run": run}
        named = {name for words in ROWS[row] for word in words for name in re.findall(r"\{(\w+)", word)}
        places |= {name: MADE[name](data, victim) for name in sorted(named & MADE.keys())}
        for words in ROWS[row]:
            given = []
            for word in words:
                given += [*tiny_sets, "--set", "train.steps=1"] if word == "{sets}" else [word.format(**places)]
            ended.append(voxelocity(*given, *more))
            assert ended[-1].status in (0, 1, 2), ended[-1]
            assert "Traceback" not in ended[-1].err
        return ended

    return call


def test_the_list_names_every_command_and_every_row_has_a_test():
    rows = re.findall(r"^\| (`.*?) \| .* \| .* \| .* \|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(.*?)`", row)}
    assert listed == ROWS.keys() | NAMED
    from voxelocity_observe.cli.main import app

    commands = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    assert commands == {name.split()[0] for name in listed}


@pytest.mark.filterwarnings("ignore:source. .*:UserWarning", "ignore:plan. .*:UserWarning")
@pytest.mark.parametrize("row", [row for row in ROWS if row not in OF_RUNS])
def test_a_crafted_data_set_is_data(row, call, victim):
    call(row)
    victim.assert_unharmed()


def cases_of(is_quick):
    every = [(row, attack) for row in OF_RUNS for attack in ATTACKS]
    return [pytest.param(*case, id=f"{case[0]}-{case[1].__name__}") for case in every if (case in QUICK) is is_quick]


def check(row, attack, call, victim, run):
    if row == "train --resume RUN":
        unfinish(run)
    attack(run, victim)
    call(row)
    victim.assert_unharmed()


IGNORED = pytest.mark.filterwarnings("ignore:.*:UserWarning")


@IGNORED
@pytest.mark.parametrize(("row", "attack"), cases_of(True))
def test_a_crafted_run_is_data(row, attack, call, victim, run):
    check(row, attack, call, victim, run)


@IGNORED
@pytest.mark.nightly
@pytest.mark.parametrize(("row", "attack"), cases_of(False))
def test_every_crafted_run_is_data_for_every_command(row, attack, call, victim, run):
    check(row, attack, call, victim, run)


@IGNORED
def test_a_place_that_the_command_names_is_used(call, run, victim, tmp_path):
    unfinish(run)
    cache_elsewhere(run, victim)
    own = tmp_path / "own"
    (ended,) = call("train --resume RUN", "--set", f"data.cache.folder={own}", "--set", "data.cache.folder_max_bytes=0")
    assert ended.status == 0, ended.err
    assert any(own.iterdir())
    victim.assert_unharmed()


@IGNORED
def test_what_a_command_does_not_take_is_said(call, run, victim):
    unfinish(run)
    cache_elsewhere(run, victim)
    with pytest.warns(UserWarning, match=r"run\.yaml keeps prepared cases in .*add --set data\.cache\.folder="):
        (ended,) = call("train --resume RUN")
    assert ended.status == 0, ended.err


def test_canaries_sing(victim):
    """What the others assert can fail."""
    with pytest.raises(OSError, match="no network"):
        socket.create_connection(("192.0.2.1", 9))
    (victim.place / "home" / "notes.txt").write_text("changed")
    with pytest.raises(AssertionError, match="tried to connect"):
        victim.assert_unharmed()
    victim.connections.clear()
    with pytest.raises(AssertionError, match="touched"):
        victim.assert_unharmed()
    os.makedirs(victim.canary)
    with pytest.raises(AssertionError, match="code of the folder"):
        victim.assert_unharmed()
