from __future__ import annotations

import ast
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from voxelocity.recipes.demo import monai_script
from voxelocity.recipes.demo.phantom import make_phantoms

SCRIPT = Path(monai_script.__file__)
SMALL = {
    "num_folds": 2,
    "spacing_mm": [6.0, 6.0, 6.0],
    "patch_voxel": [16, 16, 16],
    "channels": [4, 8],
    "strides": [2],
    "num_workers": 1,
}


@pytest.fixture(scope="module")
def phantoms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_phantoms(tmp_path_factory.mktemp("data") / "phantoms", 4, scale=0.2)


def run(phantoms: Path, out: Path, *arguments: str, changes: dict[str, Any] = SMALL) -> dict[str, Any]:
    """The record written by the script, run as a reader would: on its own, without the package on its path."""
    command = [sys.executable, "-I", str(SCRIPT), str(phantoms), "--out", str(out), "--set", json.dumps(changes)]
    subprocess.run([*command, *arguments], check=True, cwd=out.parent, timeout=240)
    record: dict[str, Any] = json.loads(out.read_text())
    return record


@pytest.mark.nightly
@pytest.mark.parametrize("recipe", ["plain", "fast"])
def test_two_epochs_give_a_complete_record(phantoms: Path, tmp_path: Path, recipe: str) -> None:
    options = ("--recipe", recipe, "--target-dice", "1.0", "--max-epochs", "2", "--seed", "3")
    record = run(phantoms, tmp_path / "result.json", *options)
    assert record["reached"] is False
    assert record["seconds_to_target"] is None
    assert record["epochs"] == len(record["loss_history"]) == 2
    assert all(math.isfinite(loss) and loss > 0 for loss in record["loss_history"])
    ((seconds, epoch, dice),) = record["dice_history"]
    assert epoch == 2
    assert 0 <= dice < 1
    assert 0 < record["seconds_per_epoch"] < seconds <= record["seconds"]
    assert sum(record["seconds_by_activity"].values()) <= record["seconds"]
    assert min(record["seconds_by_activity"].values()) > 0
    # 2 epochs of 2 scans, 2 patches each
    assert record["patches_per_second"] == pytest.approx(8 / (2 * record["seconds_per_epoch"]), rel=1e-6)
    assert record["precision"] in {"bfloat16", "float32"}
    settings = record["settings"]
    assert settings | {"recipe": recipe, "target_dice": 1.0, "seed": 3} | SMALL == settings
    json.dumps(record)


@pytest.mark.nightly
def test_training_stops_at_the_validation_that_reaches_the_target(phantoms: Path, tmp_path: Path) -> None:
    changes = SMALL | {"epochs_per_validation": 1, "num_workers": 0}
    record = run(phantoms, tmp_path / "result.json", "--target-dice", "0.0", "--max-epochs", "9", changes=changes)
    assert record["reached"] is True
    assert record["epochs"] == 1
    assert record["seconds_to_target"] == record["seconds"] >= record["dice_history"][0][0]


def test_folds_hold_out_every_case_once(phantoms: Path) -> None:
    all_cases, all_held_out = [], []
    for fold in range(4):
        training, held_out, names = monai_script.read_cases(
            phantoms, monai_script.ScriptSettings(fold=fold, num_folds=4)
        )
        assert len(training) == 3
        assert not any(case in training for case in held_out)
        all_cases.append(sorted(case["image"] for case in training + held_out))
        all_held_out += [case["image"] for case in held_out]
        assert names == ["background", "spleen", "liver", "kidney"]
    assert all(cases == sorted(all_held_out) for cases in all_cases)
    assert len(set(all_held_out)) == 4


def test_the_default_settings_survive_json() -> None:
    settings = monai_script.ScriptSettings()
    again = monai_script.ScriptSettings(**json.loads(json.dumps(monai_script.dataclasses.asdict(settings))))
    assert json.dumps(monai_script.dataclasses.asdict(again)) == json.dumps(monai_script.dataclasses.asdict(settings))


def test_the_script_imports_nothing_but_torch_monai_and_the_standard_library() -> None:
    nodes = ast.walk(ast.parse(SCRIPT.read_text()))
    imported = [node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
                for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]  # fmt: skip
    roots = {str(name).split(".")[0] for name in imported}
    assert roots - set(sys.stdlib_module_names) == {"torch", "monai"}
