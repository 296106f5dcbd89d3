import json

import pytest
from rich.console import Console

from shared.forked import run_python
from voxelocity_lab.bench.race import sides
from voxelocity_lab.bench.race.scenario import PHANTOM_KEYS
from voxelocity_lab.recipes.demo import race
from voxelocity_lab.recipes.demo.race import run_demo

SMALL = PHANTOM_KEYS | {
    "data.patch.shape_voxel": [16, 16, 16],
    "network.widths": [4, 8],
    "network.strides": [[2, 2, 2]],
}


def run_forked(*words, race):
    first, *arguments = map(str, words)
    what = f"run_module({arguments.pop(0)!r}" if first == "-m" else f"run_path({first!r}"
    ended = run_python(f"import runpy; runpy.{what}, run_name='__main__')", arguments)
    assert ended.returncode == 0, ended.stderr


# The plain script, whose loaders start processes, takes most of the time; `bench/race` trains with it every day.
@pytest.mark.slow
@pytest.mark.parametrize("names", [("fast", "ours"), pytest.param(race.SIDES, marks=pytest.mark.nightly)])
def test_the_demo_trains_every_side_with_every_seed_and_shows_them_side_by_side(names, tmp_path, monkeypatch):
    monkeypatch.setattr(race, "SIDES", names)
    monkeypatch.setattr(race, "_PHANTOM_SCALE", 0.25)
    monkeypatch.setattr(race, "_NUM_PHANTOMS", 6)
    monkeypatch.setattr(sides, "_call", run_forked)
    console = Console(quiet=True)
    outcome = run_demo(
        tmp_path / "demo", seed=0, console=console, target_dice=0.01, keys=SMALL, epochs_per_validation=1
    )
    assert [side[0].label for side in outcome.sides] == [sides.LABELS[name] for name in names]
    assert all(run.seconds_to_target > 0 and run.peak_host_bytes > 0 and run.stages for run in outcome.runs)
    page = (tmp_path / "demo" / "demo.html").read_text()
    assert all(run.label in page for run in outcome.runs)
    assert "n = 1" in page
    record = json.loads((tmp_path / "demo" / "demo.json").read_text())
    assert record["target_dice"] == 0.01
    assert record["seconds_to_target"] == {run.label: [run.seconds_to_target] for run in outcome.runs}
