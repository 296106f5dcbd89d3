from types import SimpleNamespace

import pytest

from voxelocity.training.open_session import typed_command
from voxelocity.training.session import Session
from voxelocity_observe.core.clock import FakeClock
from voxelocity_observe.core.events import EventLog, read_events
from voxelocity_observe.spans import SpanRecorder


def test_a_stage_is_written_down_and_told_as_a_phase_also_where_it_fails(tmp_path):
    clock = FakeClock()
    with SpanRecorder(clock=clock) as recorder, EventLog(tmp_path / "events.jsonl", clock=clock) as log:
        session = SimpleNamespace(log=log, clock=clock)
        with pytest.raises(ValueError, match="cannot advance by -1"), Session.stage(session, "validate"):
            clock.advance(-1.0)
        clock.advance(5.0)
        with Session.stage(session, "cache"):
            clock.advance(1.0)
    events = [(event["event"], event["name"], event["seconds"]) for event in read_events(tmp_path / "events.jsonl")]
    assert events == [("stage", "validate", 0.0), ("stage", "cache", 1.0)]
    told = [(record.name, record.seconds, record.is_phase) for record in recorder.take()]
    assert told == [("final validation", 0.0, True), ("cache", 1.0, True)]


@pytest.mark.parametrize(
    ("received", "words", "status"), [(None, "a signal to another rank", 15), (2, "Ctrl-C", 2), (15, "SIGTERM", 15)]
)
def test_a_stop_names_the_signal_that_this_process_received(received, words, status, tmp_path):
    with EventLog(tmp_path / "events.jsonl") as log:
        session = SimpleNamespace(
            log=log, stop=SimpleNamespace(signal_number=received), folder=SimpleNamespace(path=tmp_path)
        )
        session._page_text = lambda: ""
        error = Session.log_interruption(session, 40)
    assert f"stopped by {words} at step 40" in str(error)
    assert error.signal_number == status
    assert read_events(tmp_path / "events.jsonl")[-1]["signal"] == status


@pytest.mark.parametrize(
    ("argv", "notebook", "expected"),
    [
        (["/bin/voxelocity", "train", "my data", "--token=x"], "", "/bin/voxelocity train 'my data' '--token=***'"),
        (["/site-packages/voxelocity/__main__.py", "train"], "", "voxelocity train"),
        (["mine/__main__.py", "train"], "", "mine/__main__.py train"),
        (["/x/ipykernel_launcher.py", "-f", "/home/ada/kernel.json"], "/home/ada/liver.ipynb", "liver.ipynb"),
        (["/x/ipykernel_launcher.py", "-f", "/home/ada/kernel.json"], "", "notebook.ipynb"),
        ([], "", "python"),
    ],
)
def test_a_run_records_its_command_as_it_is_typed_or_its_notebook(argv, notebook, expected, monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    if notebook:
        monkeypatch.setenv("JPY_SESSION_NAME", notebook)
    assert typed_command(argv) == expected
