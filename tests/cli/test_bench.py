import json

import pytest


def test_a_misspelt_scenario_ends_with_the_nearest_name(voxelocity):
    told = voxelocity("bench", "pathces")
    assert told.status == 2
    assert "bench: unknown scenario 'pathces'; did you mean 'patches'?" in told.err


@pytest.mark.slow
def test_a_scenario_shows_its_tables_and_writes_its_record(voxelocity, tmp_path):
    told = voxelocity("bench", "build", "--quick", "--work", tmp_path / "work", "-o", tmp_path / "results")
    assert told.status == 0, told.err
    assert "one file to voxels" in told.out
    assert "see" in told.out
    assert json.loads((tmp_path / "results" / "bench_build.json").read_text())["benchmark"] == "build"
