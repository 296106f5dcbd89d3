import importlib.util
import json
import struct
import sys
import time
from types import SimpleNamespace

import pytest

from shared.limits import HANGS_S
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.sinks import WandbSink

pytest.importorskip("wandb", reason="the extra 'wandb' is not installed")


def records(path):
    """The records of a `.wandb` file, parsed by wandb's own messages; the file is LevelDB's log format."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, position, part = path.read_bytes(), 7, b""
    assert content.startswith(b":W&B")
    while position + 7 <= len(content):
        left_in_block = 32768 - position % 32768
        if left_in_block < 7:
            position += left_in_block
            continue
        length, kind = struct.unpack_from("<HB", content, position + 4)
        part += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            yield Record.FromString(part)
            part = b""


@pytest.fixture
def stored(start):
    """Reads the one offline record back: its id, config, history rows and summary, and how it ended."""

    def read():
        until_s = time.monotonic() + HANGS_S
        found = look()
        # Its service writes in a process of its own, and may be done a little after `finish` has returned.
        while "exit" not in found and time.monotonic() < until_s:
            time.sleep(0.01)
            found = look()
        return found

    def look():
        (path,) = (start.folder / "wandb").glob("offline-run-*/run-*.wandb")
        found = {"history": [], "summary": {}, "config": {}}
        for record in records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                found["id"], found["name"] = record.run.run_id, record.run.display_name
                found["config"] |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
                found["host"] = record.run.host
            elif kind == "history":
                row = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
                found["history"].append(row)
            elif kind == "summary":
                items = record.summary.update
                found["summary"] |= {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}
            elif kind == "exit":
                found["exit"] = record.exit.exit_code
        return found

    return read


def curve(found, name):
    return [(row["_step"], row[name]) for row in found["history"] if name in row]


def test_an_offline_run_is_written_in_wandbs_own_format(tell, stored, first_session):
    assert tell(WandbSink(), first_session) == []
    found = stored()
    assert curve(found, "train/loss") == [(10, 0.9), (20, 0.8), (30, 0.77)]
    assert curve(found, "validation/dice/left atrium (LA)") == [(20, 0.5)]
    assert found["config"]["optimizer"] == {"name": "adamw", "learning_rate": 0.01}
    assert found["config"]["environment"]["cpu"] == "AMD EPYC"
    assert found["name"] == "spleen"
    assert found["exit"] == 1, "its last event is not its end"


def test_a_resumed_run_is_written_whole_under_the_same_id_in_place_of_the_earlier_record(
    tell, stored, first_session, second_session
):
    tell(WandbSink(), first_session)
    before = stored()["id"]
    assert tell(WandbSink(), second_session, first_session) == []
    found = stored()
    assert found["id"] == before
    assert curve(found, "train/loss") == [(10, 0.9), (20, 0.8), (27, 0.75), (40, 0.6)]
    assert curve(found, "validation/mean_dice") == [(20, 0.5), (40, 0.7)]
    assert found["summary"]["final/mean_dice"] == 0.72
    assert found["exit"] == 0


class Server:
    """Stands in for the package: keeps what a run that is sent would tell, and knows the ids it was told before."""

    def __init__(self):
        self.known, self.calls, self.rows, self.summary = set(), [], [], {}

    def init(self, **options):
        self.calls.append(options)
        resumed = options["id"] in self.known
        self.known.add(options["id"])
        log = lambda values, step: self.rows.append((step, values.get("train/loss")))  # noqa: E731
        return SimpleNamespace(resumed=resumed, log=log, summary=self.summary, finish=lambda exit_code: None)

    def Settings(self, **settings):  # noqa: N802
        return settings


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    made = Server()
    monkeypatch.setitem(sys.modules, "wandb", made)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: made)
    return made


def test_a_run_that_is_sent_goes_on_at_the_server_without_double_points(tell, server, first_session, second_session):
    assert tell(WandbSink(is_online=True), first_session) == []
    assert tell(WandbSink(is_online=True), second_session, first_session) == []
    first, second = server.calls
    assert first["id"] == second["id"]
    assert (first["resume"], first["settings"]["mode"]) == ("allow", "online")
    losses = [(step, loss) for step, loss in server.rows if loss is not None]
    assert losses == [(10, 0.9), (20, 0.8), (30, 0.77), (40, 0.6)]
    assert server.summary["final/mean_dice"] == 0.72


def test_a_server_that_does_not_know_the_run_is_told_all_of_it(tell, server, first_session, second_session):
    tell(WandbSink(is_online=True), first_session)
    server.known.clear()
    server.rows.clear()
    tell(WandbSink(is_online=True), second_session, first_session)
    losses = [(step, loss) for step, loss in server.rows if loss is not None]
    assert losses == [(10, 0.9), (20, 0.8), (27, 0.75), (40, 0.6)]


@pytest.mark.parametrize("content", [None, "not a netrc", "machine other.host login user password key"])
def test_sending_without_a_login_is_refused_before_the_run(tmp_path, monkeypatch, content):
    for variable in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    file = tmp_path / "netrc"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("NETRC", str(file))
    with pytest.raises(
        ConfigError, match=r"wandb:online needs a login, .* for api.wandb.ai in the netrc file; `wandb login`"
    ):
        WandbSink(is_online=True)
    file.write_text("machine api.wandb.ai login user password key")
    assert WandbSink(is_online=True).name == "wandb"


def test_a_new_run_has_a_new_id(tell, stored, first_session, start):
    tell(WandbSink(), first_session[:2])
    before = stored()["id"]
    tell(WandbSink(), first_session[:2])
    assert stored()["id"] != before
    assert before.startswith("spleen-")
