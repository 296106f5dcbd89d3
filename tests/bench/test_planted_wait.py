"""The planted wait: what the script and the diagnosis say is read and compared as it should be."""

import importlib
import json

import pytest


@pytest.fixture(scope="module")
def runner():
    return importlib.import_module("planted_wait")


def test_the_middle_epoch_tells_what_was_waited(runner):
    text = "".join(
        f"epoch {number}: waited {waited} of 2.0 s\n" for number, waited in enumerate((2.0, 2.0, 0.6, 0.5, 0.1), 1)
    )
    assert runner.waited_share(text) == 0.25


def test_a_run_that_was_too_short_is_told_with_the_cure(runner):
    with pytest.raises(ValueError, match=r"fewer than three epochs; give the diagnosis more --seconds"):
        runner.waited_share("epoch 1: waited 0.5 of 2.0 s\nepoch 2: waited 0.5 of 2.0 s\n")


@pytest.mark.parametrize(("reported", "status"), [(0.32, 0), (0.34, 1)])
def test_a_report_that_is_off_by_more_than_three_points_fails_and_is_written_all_the_same(
    runner, tmp_path, monkeypatch, capsys, reported, status
):
    monkeypatch.setattr(runner, "watch", lambda share, *, seconds: (0.3, reported))
    assert runner.main(["--shares", "0.3", "--rounds", "2", "--out", str(tmp_path)]) == status
    (share,) = json.loads((tmp_path / "planted_wait.json").read_text())["shares"]
    assert (share["n"], share["reported"]) == (2, [reported, reported])
    assert "planted 30%: waited 30.0%" in capsys.readouterr().out
