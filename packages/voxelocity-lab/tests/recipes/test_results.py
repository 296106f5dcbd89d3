"""Results of other data never replace those of the run, and say which data they are of."""

import csv
import io
import json
import shutil

import pytest
from recipes.test_both import _TRIALS
from rich.console import Console

from shared.recipe_call import call_of
from voxelocity.infer.models.spec import read_spec
from voxelocity_lab.recipes.brain import recipe as brain
from voxelocity_lab.recipes.pathology import recipe as pathology
from voxelocity_lab.recipes.results import find_training_data, name_of, open_results
from voxelocity_lab.recipes.spleen import recipe as spleen
from voxelocity_lab.recipes.tractography import recipe as tractography
from voxelocity_observe.core.errors import ConfigError, OutputError

_RECIPES = {"brain": brain, "pathology": pathology, "spleen": spleen, "tractography": tractography}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def files_of(folder):
    left_out = ("events.jsonl", ".lock")
    return {
        path: path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "predicted_" not in str(path.relative_to(folder)) and path.name not in left_out
    }


@pytest.mark.parametrize("name", _TRIALS)
def test_predicting_other_data_leaves_the_results_of_the_run_alone(name, request, tmp_path):
    data, recipe, sets = request.getfixturevalue(_TRIALS[name].data), _RECIPES[name], _TRIALS[name].sets
    said = io.StringIO()
    call = call_of(data, tmp_path / "run", overrides=sets, console=Console(file=said, width=300))
    recipe.train(call)
    recipe.predict(call)
    assert name != "spleen" or "predicted 1 case into" in said.getvalue()
    before = files_of(tmp_path / "run")
    assert before
    place = data.parent if data.is_file() else data
    other = tmp_path / "elsewhere" / "other"
    shutil.copytree(place, other)
    if name == "spleen":
        # Of other data, all scans are predicted, whatever their classes.
        described = json.loads((other / "dataset.json").read_text())
        described["labels"]["2"] = "liver"
        (other / "dataset.json").write_text(json.dumps(described))
    said = io.StringIO()
    recipe.predict(call_of(other, tmp_path / "run", overrides=sets, console=Console(file=said, width=300)))
    assert files_of(tmp_path / "run") == before
    results = tmp_path / "run" / "predicted_other"
    assert json.loads((results / "data.json").read_text()) == {"data": str(other)}
    assert f"is not the data that this run was trained on ({trained_on_of(name, tmp_path)})" in said.getvalue()
    if name in ("brain", "spleen"):
        # All are predicted; this copy of the training's data says which of them were held out.
        assert len(list((results / "predictions").glob("*.nii.gz"))) == {"brain": 5, "spleen": 7}[name]
        with (results / "predictions" / "predictions.csv").open(newline="") as file:
            sides = {row["case"]: row["division"] for row in csv.DictReader(file)}
        division = read_spec(tmp_path / "run" / "model.json").division
        known = dict.fromkeys(division.training, "trained on") | dict.fromkeys(division.held_out, "held out")
        assert {case: side for case, side in sides.items() if case in known} == known
        assert "Mean Dice over" not in said.getvalue()
    else:
        assert json.loads((results / "scores.json").read_text())["data"] == str(other)
    another = tmp_path / "third" / "other"
    shutil.copytree(other, another)
    with pytest.raises(ConfigError, match=r"predicted_other holds the results of .*elsewhere/other.*--overwrite"):
        recipe.predict(call_of(another, tmp_path / "run", overrides=sets))


def trained_on_of(name, tmp_path):
    run = tmp_path / "run"
    return find_training_data(run / "fold_0" if name == "pathology" else run)


def test_a_data_set_is_known_by_its_place(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    call = call_of(tmp_path / "link", tmp_path / "run")
    assert open_results(call, tmp_path / "data") is call
    assert open_results(call, None) is call
    assert name_of(tmp_path / "link") == "data"


def test_results_are_not_written_through_a_link_out_of_the_run(tmp_path):
    for name in ("data", "run", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "run" / "predicted_data").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match=r"predicted_data is a link to .*elsewhere, outside of .*run"):
        open_results(call_of(tmp_path / "data", tmp_path / "run"), tmp_path / "other")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_the_challenges_folders_are_known_by_where_their_cases_lie(brains, tmp_path):
    endings = ("_flair", "_t1", "_t1ce", "_t2")
    for place in ("one", "two"):
        for label in sorted((brains / "labelsTr").iterdir()):
            name = label.name.removesuffix(".nii.gz")
            (tmp_path / place / name).mkdir(parents=True)
            for channel, ending in enumerate(endings):
                scan = brains / "imagesTr" / f"{name}_{channel:04d}.nii.gz"
                shutil.copy(scan, tmp_path / place / name / f"{name}{ending}.nii.gz")
            shutil.copy(label, tmp_path / place / name / f"{name}_seg.nii.gz")
    call = call_of(tmp_path / "one", tmp_path / "run", overrides=_TRIALS["brain"].sets)
    brain.train(call)
    described = (tmp_path / "run-data" / "dataset.json").read_bytes()
    brain.predict(call)
    assert (tmp_path / "run" / "predictions").is_dir()
    brain.predict(call_of(tmp_path / "two", tmp_path / "run"))
    assert (tmp_path / "run" / "predicted_two" / "predictions").is_dir()
    assert (tmp_path / "run-data" / "dataset.json").read_bytes() == described
