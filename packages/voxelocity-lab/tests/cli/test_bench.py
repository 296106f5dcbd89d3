import json

import pytest

from shared.refused import assert_refused


def test_a_misspelt_scenario_ends_with_the_nearest_name(voxelocity):
    assert_refused(voxelocity("bench", "pathces"), "bench: unknown scenario 'pathces'; did you mean 'patches'?")


@pytest.mark.slow
def test_a_scenario_shows_its_tables_and_writes_its_record(voxelocity, tmp_path):
    told = voxelocity("bench", "build", "--quick", "--work", tmp_path / "work", "-o", tmp_path / "results").succeeded()
    assert "one file to voxels" in told.out
    assert "see" in told.out
    assert json.loads((tmp_path / "results" / "bench_build.json").read_text())["benchmark"] == "build"


@pytest.mark.slow
def test_a_setting_is_trained_off_and_on_and_shown_with_its_page(voxelocity, tmp_path, monkeypatch):
    import io

    from rich.console import Console

    from voxelocity import open as open_cases
    from voxelocity.training import train

    def train_here(*words, environ):
        assert not environ
        # In this process: a fresh one for each training would take a minute.
        dataset, out, config = words[3], words[5], words[9]
        train(open_cases(dataset), out, overrides=json.loads(config.read_text()), console=Console(file=io.StringIO()))

    monkeypatch.setattr("voxelocity_lab.bench.switched.run_python", train_here)
    told = voxelocity("bench", "amp", "--quick", "--work", tmp_path / "work", "-o", tmp_path / "results").succeeded()
    for phrase in ("float32: trained in", "Mixed precision", "95 % interval", "Mean loss", "1.11 times as fast"):
        assert phrase in told.out
    assert (tmp_path / "results" / "bench_amp.html").is_file()
    assert json.loads((tmp_path / "results" / "bench_amp.json").read_text())["benchmark"] == "amp"


def test_a_setting_of_gpus_is_refused_where_there_is_none(voxelocity):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    told = voxelocity("bench", "tf32")
    assert_refused(told, "bench: 'tf32' needs a CUDA device (TF32 is a format of its matrix units)")


def test_real_scans_are_refused_where_phantoms_are_trained_on(voxelocity, tmp_path):
    told = voxelocity("bench", "compile", "--data", tmp_path)
    assert_refused(told, "bench: 'compile' trains on phantoms and has no use for --data; leave it out")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("time-to-target", "--quick"), "time-to-target has no quick form; leave --quick out"),
        (
            ("transforms", "--seeds", 2, "--time-budget", "1m"),
            "--seeds 2 and --time-budget 1m: only for time-to-target; leave it out",
        ),
        (("amp", "--task", "bodies"), "--task bodies: only for time-to-target"),
        (
            ("time-to-target", "--time-budget", "2m", "--limit", "75s"),
            "--time-budget 2m and --limit 75s: a training within a budget has no other limit; give one of the two",
        ),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(voxelocity, words, text):
    assert_refused(voxelocity("bench", *words), f"bench: {text}")


def test_a_folder_for_results_that_cannot_be_made_is_refused_before_anything_is_measured(voxelocity, tmp_path):
    (tmp_path / "file").write_text("")
    told = voxelocity("bench", "windows", "-o", tmp_path / "file" / "results")
    assert told.status == 2
    assert f"bench: cannot make the folder {tmp_path}/file/results (Not a directory); name another with -o" in told.err
