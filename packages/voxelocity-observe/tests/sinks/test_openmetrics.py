import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse

from voxelocity_observe.sinks import OpenMetricsSink, choose_sinks


def figures(path):
    return {
        sample.name.removeprefix("voxelocity_") + sample.labels.get("class", ""): sample.value
        for family in parse(path.read_text())
        for sample in family.samples
        if sample.labels["run"] == "spleen"
    }


def test_the_file_has_the_latest_figures_of_the_run(tell, start, first_session, second_session):
    assert tell(OpenMetricsSink(), first_session + second_session[1:2]) == []
    assert figures(start.folder / "metrics.prom") == {
        "train_step": 30.0,
        "train_epoch": 3.0,
        "train_loss": 0.77,
        "train_learning_rate": 0.01,
        "train_images_per_second": 10.0,
        "train_wait_ratio": 0.25,
        "validation_mean_dice_ratio": 0.5,
        "validation_best_mean_dice_ratio": 0.5,
        "validation_dice_ratioleft atrium (LA)": 0.5,
        "validation_duration_seconds": 1.0,
        "run_elapsed_seconds": 4.1,
        "run_warnings": 1.0,
        "run_running": 0.0,
    }


def test_it_says_that_the_run_goes_on_until_it_has_ended(start, first_session):
    sink = OpenMetricsSink()
    sink.begin(start)
    sink.write(first_session[1])
    assert figures(start.folder / "metrics.prom")["run_running"] == 1.0
    sink.end()
    assert figures(start.folder / "metrics.prom")["run_running"] == 0.0


def test_a_resumed_run_goes_on_from_the_figures_that_still_count(tell, start, first_session, second_session):
    tell(OpenMetricsSink(), second_session[:3], first_session)
    found = figures(start.folder / "metrics.prom")
    assert (found["train_step"], found["validation_best_mean_dice_ratio"]) == (27.0, 0.5)


def test_a_validation_without_a_score_does_not_hide_the_best_one(tell, start, first_session):
    lost = {**first_session[3], "step": 30, "mean_dice": None, "dice": {}, "is_best": False}
    tell(OpenMetricsSink(), [*first_session, lost])
    found = figures(start.folder / "metrics.prom")
    assert "validation_mean_dice_ratio" not in found
    assert found["validation_best_mean_dice_ratio"] == 0.5


def test_a_home_folder_is_found_as_a_shell_would_find_it(tell, tmp_path, monkeypatch, first_session):
    monkeypatch.setenv("HOME", str(tmp_path))
    (sink,) = choose_sinks(["openmetrics:~/run.prom"])
    assert tell(sink, first_session) == []
    assert (tmp_path / "run.prom").exists()


@pytest.mark.parametrize("folder", ["", "nowhere"])
def test_a_file_of_ones_own_is_written_where_its_folder_exists(tell, tmp_path, first_session, folder):
    path = tmp_path / folder / "run.prom"
    warnings = tell(OpenMetricsSink(path), first_session)
    assert path.exists() == (not folder)
    assert len(warnings) == (1 if folder else 0)
    assert all("openmetrics is dropped" in text and "No such file" in text for text in warnings)


def test_the_newest_sample_of_the_machine_stands_beside_the_figures_of_the_run(tell, start, first_session):
    gpu = {"index": 0, "name": "H100", "busy_share": 0.75, "throttle_reasons": []}
    host = {"core_shares": [0.5, 1.0], "memory_used_bytes": 7}
    samples = [
        {"event": "sample", "time_s": 2.5, "period_s": 10.0, "host": host, "gpus": [gpu]},
        {"event": "sample", "time_s": 2.6, "period_s": 10.0, "host": {**host, "memory_used_bytes": 9}, "gpus": []},
    ]
    tell(OpenMetricsSink(), [*first_session[:2], samples[0]])
    found = figures(start.folder / "metrics.prom")
    assert found["gpu_busy_ratio"] == 0.75
    assert found["memory_used_bytes"] == 7
    tell(OpenMetricsSink(), [*first_session[:2], *samples])
    found = figures(start.folder / "metrics.prom")
    assert "gpu_busy_ratio" not in found, "a device that was lost"
    assert found["memory_used_bytes"] == 9
