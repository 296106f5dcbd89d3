"""`benchmarks/monai_examples.py`: what it makes of the scripts' figures, and that it runs them."""

import importlib
import json
import subprocess
from dataclasses import replace

import pytest

from voxelocity.bench.phantom import PhantomSet


@pytest.fixture(scope="module")
def examples():
    return importlib.import_module("monai_examples")


def outcome(examples, seconds, losses):
    return dict.fromkeys((*examples.FIGURES, "seconds_in_all", "mean_dice"), seconds) | {
        "losses": losses,
        "num_steps": len(losses),
    }


def test_medians_are_taken_side_by_side_and_losses_compared_round_by_round(examples):
    brains = PhantomSet(kind="mr", shape=(8, 8, 8), num_cases=5)
    example = examples.Example(name="brats", cases=brains, options=("--small",))
    runs = {
        "MONAI": [outcome(examples, seconds, [2.0, 1.0]) for seconds in (3.0, 9.0, 4.0)],
        "Voxelocity": [outcome(examples, 1.0, [2.0, last]) for last in (1.0, 1.01, 1.0)],
    }
    found = examples.compared(example, runs)
    assert found["largest_difference"] == pytest.approx(0.01)
    assert found["sides"]["MONAI"]["seconds_per_epoch"] == {"median": 4.0, "low": 3.0, "high": 9.0}
    assert found["sides"]["Voxelocity"]["samples_per_s"]["median"] == 1.0
    assert (found["n"], found["num_steps"]) == (3, 2)


FAKE = """
import json, sys
from pathlib import Path
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
cases = json.loads((Path(words["--data"]) / "dataset.json").read_text())["training"]
assert len(cases) == 5 and all(Path(case["image"]).is_file() for case in cases)
out = Path(words["--out"])
out.mkdir()
figures = ("seconds_to_fill_cache", "seconds_per_epoch", "samples_per_s", "mean_dice")
(out / "summary.json").write_text(json.dumps(dict.fromkeys(figures, FIGURE) | {"num_steps": 2}))
(out / "losses.csv").write_text("step,epoch,loss\\n0,0,2.0\\n1,0,1.5\\n")
"""


@pytest.mark.nightly
def test_both_scripts_are_run_on_a_decathlon_folder_and_recorded(examples, tmp_path, monkeypatch):
    folder = tmp_path / "examples" / "monai" / "spleen"
    folder.mkdir(parents=True)
    for figure, name in ((4.0, "with_monai.py"), (1.0, "with_voxelocity.py")):
        (folder / name).write_text(FAKE.replace("FIGURE", str(figure)))
    monkeypatch.setattr(examples, "ROOT", tmp_path)
    # In pairs, as the scripts above read them.
    monkeypatch.setattr(examples, "TINY", (replace(examples.TINY[0], options=("--small", "1")),))
    examples.main(["--quick", "--rounds", "1", "--epochs", "1", "--out", str(tmp_path)])
    record = json.loads((tmp_path / "monai_examples.json").read_text())
    (found,) = record["examples"]
    assert (found["name"], found["num_steps"], found["largest_difference"]) == ("spleen", 2, 0.0)
    assert {name: side["seconds_per_epoch"]["median"] for name, side in found["sides"].items()} == {
        "MONAI": 4.0,
        "Voxelocity": 1.0,
    }
    assert all(side["seconds_in_all"]["median"] > 0 for side in found["sides"].values())


def test_a_script_that_fails_is_no_figure(examples, tmp_path, monkeypatch):
    (tmp_path / "examples" / "monai" / "spleen").mkdir(parents=True)
    (tmp_path / "examples" / "monai" / "spleen" / "with_monai.py").write_text("raise SystemExit(3)")
    monkeypatch.setattr(examples, "ROOT", tmp_path)
    with pytest.raises(subprocess.CalledProcessError, match="exit status 3"):
        examples.run_script(examples.TINY[0], "MONAI", tmp_path, tmp_path, epochs=1)
