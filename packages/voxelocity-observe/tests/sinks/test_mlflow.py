import json
import os
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from voxelocity_observe.sinks import MlflowSink

pytest.importorskip("mlflow", reason="the extra 'mlflow' is not installed")


@pytest.fixture
def stored(start, monkeypatch):
    """Reads a run back: its data and status, and curves by name."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")

    def read():
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=str(start.folder / "mlflow"))
        run_id = json.loads((start.folder / "mlflow.json").read_text())["run_id"]
        (experiment,) = client.search_experiments(filter_string="name = 'voxelocity'")
        assert [run.info.run_id for run in client.search_runs([experiment.experiment_id])] == [run_id]

        def curve(name):
            return [(metric.step, metric.value) for metric in client.get_metric_history(run_id, name)]

        return client.get_run(run_id), curve

    return read


def test_a_run_is_read_back_by_mlflow(tell, stored, first_session):
    assert tell(MlflowSink(), first_session) == []
    run, curve = stored()
    assert curve("train/loss") == [(10, 0.9), (20, 0.8), (30, 0.77)]
    assert curve("validation/dice/left atrium _LA_") == [(20, 0.5)]
    assert run.data.params == {
        "seed": "3",
        "optimizer.name": "adamw",
        "optimizer.learning_rate": "0.01",
        "network.widths": "[4, 8]",
    }
    assert run.data.tags["environment.cpu"] == "AMD EPYC"
    assert run.info.run_name == "spleen"
    assert run.info.status == "FAILED", "its last event is not its end"


def test_a_resumed_run_goes_on_in_the_same_record_without_double_points(tell, stored, first_session, second_session):
    tell(MlflowSink(), first_session)
    assert tell(MlflowSink(), second_session, first_session) == []
    run, curve = stored()
    assert curve("train/loss") == [(10, 0.9), (20, 0.8), (30, 0.77), (40, 0.6)]
    assert curve("validation/mean_dice") == [(20, 0.5), (40, 0.7)]
    assert curve("final/mean_dice") == [(40, 0.72)]
    assert run.info.status == "FINISHED"


def test_a_record_that_begins_with_a_resumed_run_has_all_that_counts(tell, stored, first_session, second_session):
    tell(MlflowSink(), second_session, first_session)
    _, curve = stored()
    assert curve("train/loss") == [(10, 0.9), (20, 0.8), (27, 0.75), (40, 0.6)]


def test_the_folder_of_a_run_may_have_any_name(start, tmp_path, first_session):
    folder = tmp_path / "dose: 50%20 #1?" / "tracking"
    sink = MlflowSink()
    sink.begin(replace(start, folder=folder))
    sink.write(first_session[1])
    sink.end()
    assert list(folder.glob("mlflow/*/*/metrics/train/loss"))
    assert [path.name for path in tmp_path.iterdir()] == ["dose: 50%20 #1?"]


def test_scores_of_more_classes_than_mlflow_takes_at_once_are_all_there(tell, stored, first_session):
    (validation,) = [event for event in first_session if event["event"] == "validation"]
    many = {**validation, "dice": {f"organ {number}": 0.5 for number in range(1001)}}
    assert tell(MlflowSink(), [*first_session, many]) == []
    _, curve = stored()
    assert curve("validation/dice/organ 1000") == [(30, 0.5)]


def test_an_interrupted_run_is_marked_as_stopped(tell, stored, first_session):
    tell(MlflowSink(), [*first_session, {"event": "interrupted", "time_s": 5.0, "signal": 2}])
    assert stored()[0].info.status == "KILLED"


def test_a_server_that_is_not_there_is_told_of_and_ends_nothing(tell, first_session, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    (warning,) = tell(MlflowSink("http://127.0.0.1:9"), first_session[:2])
    assert "sinks: mlflow is dropped (MlflowException" in warning


def test_statistics_of_use_are_off_even_where_mlflow_was_imported_before(tell, monkeypatch, first_session):
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    calls = []
    told = SimpleNamespace(set_telemetry_client=lambda: calls.append(os.environ["MLFLOW_DISABLE_TELEMETRY"]))
    monkeypatch.setitem(sys.modules, "mlflow.telemetry", told)
    tell(MlflowSink(), first_session[:2])
    assert calls == ["true"]
