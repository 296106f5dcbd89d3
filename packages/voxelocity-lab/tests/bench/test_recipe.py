"""`benchmarks/recipe.py`: its phantoms, its tiniest run, and the tables of its records."""

import importlib
import json

import nibabel as nib
import numpy as np
import pytest

import voxelocity
from voxelocity_lab.bench.race.sides import LABELS
from voxelocity_lab.recipes.brain.dataset import REGIONS
from voxelocity_lab.recipes.factors import SIDES

ENVIRONMENT = dict.fromkeys(("cpu", "gpu", "torch", "monai", "commit"), "x") | {"num_cpus": 2, "memory_bytes": 1}
HEAD = {"command": "python benchmarks/recipe.py", "date": "2026-01-02", "environment": ENVIRONMENT}


@pytest.fixture
def script():
    return importlib.import_module("recipe")


@pytest.fixture
def tables(tmp_path, monkeypatch):
    monkeypatch.setattr("tables_of.results.RESULTS", tmp_path)
    monkeypatch.setattr("tables_of.results.is_in_history", lambda commit: True)
    return importlib.import_module("tables_of.recipes")


def test_spleens_are_a_data_set_of_one_organ(script, tmp_path):
    cases = voxelocity.open(script.spleens(tmp_path, True))
    assert cases.class_names == ("background", "spleen")
    assert len(cases) == 6
    for ref in cases:
        assert np.unique(nib.load(ref.label).dataobj).tolist() == [0, 1]


@pytest.mark.nightly
def test_one_rank_and_two_train_alike(script, tmp_path):
    script.main(["brain", "--quick", "--out", str(tmp_path)])
    record = json.loads((tmp_path / "recipe_brain.json").read_text())
    assert record["command"].endswith("benchmarks/recipe.py brain --quick")
    assert list(record["classes"]["1"]) == list(record["classes"]["2"]) == list(REGIONS)
    assert record["largest_difference"]["of a loss"] < 1e-5
    assert 0.0 < record["largest_difference"]["of a weight"] < 1e-4


def test_the_table_of_a_race_tells_what_missed_the_target(tables, tmp_path):
    record = {
        **HEAD, "target_dice": 0.9, "limit_s": 60.0, "seeds": [0, 1],
        "seconds_to_target": {"MONAI, plain script": [None, 50.0], "Voxelocity": [10.0, 20.0]},
    }  # fmt: skip
    (tmp_path / "recipe_spleen.json").write_text(json.dumps(record))
    lines = tables.spleen_lines()
    assert lines[0] == "|  | to Dice 0.9 | times ours |"
    assert "| MONAI, plain script | not within 1 min in 1 of 2 | at least 4.2× |" in lines
    assert "| Voxelocity | 15 s (10 s to 20 s) |  |" in lines
    assert not tables.brain_race_lines()


def test_the_table_of_the_spleen_has_a_row_for_each_change(tables, tmp_path):
    trainings = {
        LABELS[side]: [
            {
                "seconds_per_epoch": epoch_s,
                "dice_history": [[9.0, 0.5], [20.0, 0.4]],
                "stages": {"training steps": 20.0},
            }
        ]
        * 2
        for side, epoch_s in zip(SIDES, (10.0, 2.0, 1.0, 0.5, 0.4), strict=True)
    }
    seconds = [[None, None], [60.0, 30.0], [30.0, 15.0], [10.0, 10.0], [8.0, 10.0]]
    record = {
        **HEAD, "target_dice": 0.95, "limit_s": 90.0, "seeds": [0, 1], "trainings": trainings,
        "seconds_to_target": dict(zip(trainings, seconds, strict=True)),
    }  # fmt: skip
    (tmp_path / "recipe_spleen.json").write_text(json.dumps(record))
    lines = tables.spleen_lines()
    assert lines[0] == "| what is added | an epoch | to Dice 0.95 | an epoch, times less | to the Dice, times less |"
    assert "| the plain script | 10 s | not reached |  |  |" in lines
    assert "| cache: MONAI's fast recipe | 2.0 s | 45 s | 5.0× | at least 2.2× |" in lines
    assert "| cache: MONAI's fast recipe | 10 | 2.0 s to 2.0 s | 30 s to 1 min | 0.50 to 0.50 |" in lines


def test_the_table_of_memory_names_size_and_sides(tables, tmp_path):
    record = {
        **HEAD, "shape": [240, 240, 155], "num_cases": {"training": 4, "held out": 1},
        "trainings": {"MONAI, fast recipe": {"peak_host_bytes": 2**31}, "Voxelocity": {"peak_host_bytes": 2**30}},
        "predicted_peak_bytes": [2**29],
    }  # fmt: skip
    (tmp_path / "recipe_brain_memory.json").write_text(json.dumps(record))
    lines = tables.brain_memory_lines()
    assert "| training, MONAI, fast recipe | 2.00 GiB |" in lines
    assert "| prediction of a case, Voxelocity | 512 MiB |" in lines
    assert any(line.startswith("4 cases of 240 x 240 x 155 voxels") for line in lines)
