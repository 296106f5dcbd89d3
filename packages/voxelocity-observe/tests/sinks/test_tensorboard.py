import math

import pytest

from voxelocity_observe.sinks import TensorBoardSink

pytest.importorskip("tensorboard", reason="the extra 'tensorboard' is not installed")


def read(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    return events


def curve(events, name):
    return [(event.step, round(event.value, 4)) for event in events.Scalars(name)]


def test_a_run_is_read_back_by_tensorboard(tell, start, first_session):
    assert tell(TensorBoardSink(), first_session) == []
    events = read(start.folder / "tensorboard")
    assert curve(events, "train/loss") == [(10, 0.9), (20, 0.8), (30, 0.77)]
    assert curve(events, "validation/dice/left atrium (LA)") == [(20, 0.5)]
    assert "validation/dice/wall" not in events.Tags()["scalars"]
    assert not [name for name in events.Tags()["scalars"] if math.isnan(curve(events, name)[0][1])]


def test_what_a_killed_session_did_after_its_checkpoint_is_taken_back(tell, start, first_session, second_session):
    tell(TensorBoardSink(), first_session)
    assert tell(TensorBoardSink(), second_session, first_session) == []
    events = read(start.folder / "tensorboard")
    assert curve(events, "train/loss") == [(10, 0.9), (20, 0.8), (27, 0.75), (40, 0.6)]
    assert curve(events, "validation/mean_dice") == [(20, 0.5), (40, 0.7)]
    assert curve(events, "final/mean_dice") == [(40, 0.72)]


def test_plan_environment_and_warnings_stand_beside_the_curves(tell, start, first_session, second_session):
    from tensorboard.plugins.hparams import plugin_data_pb2

    tell(TensorBoardSink(), first_session + second_session[1:2])
    events = read(start.folder / "tensorboard")
    texts = {
        name: events.Tensors(f"{name}/text_summary")[0].tensor_proto.string_val[0].decode()
        for name in ("plan", "environment", "warnings")
    }
    assert '"learning_rate": 0.01' in texts["plan"]
    assert "AMD EPYC" in texts["environment"]
    assert texts["warnings"] == "one scan has no foreground"
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    settings = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert settings["optimizer.name"].string_value == "adamw"
    assert settings["seed"].number_value == 3
    assert settings["network.widths"].string_value == "[4, 8]"


def test_a_sink_that_is_asked_for_only_when_the_run_goes_on_has_the_whole_of_it(
    tell, start, first_session, second_session
):
    tell(TensorBoardSink(), second_session, first_session)
    events = read(start.folder / "tensorboard")
    assert curve(events, "train/loss") == [(10, 0.9), (20, 0.8), (27, 0.75), (40, 0.6)]
    assert "plan/text_summary" in events.Tags()["tensors"]


def test_in_a_shared_folder_each_run_has_its_own_and_a_new_one_replaces_one_of_its_name(
    tell, tmp_path, monkeypatch, first_session
):
    monkeypatch.setenv("HOME", str(tmp_path))
    logs = tmp_path / "logs"
    tell(TensorBoardSink("~/logs"), first_session)
    tell(TensorBoardSink(logs), first_session[:2])
    assert curve(read(logs / "spleen"), "train/loss") == [(10, 0.9)]
