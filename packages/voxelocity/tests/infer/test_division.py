"""Which cases a model has seen: by id and size, through ensembles, and whatever a data set becomes later."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from shared.recipe_call import call_of
from shared.small_predictor import small_spec
from voxelocity.core.cases import Cases, Split
from voxelocity.core.volume import VolumeRef
from voxelocity.infer import CaseDivision, held_out_cases
from voxelocity.infer.division import case_bytes
from voxelocity.infer.models.ensemble import _division
from voxelocity_lab.recipes.segmentation import find_unseen_cases
from voxelocity_observe.core.errors import InputError


@pytest.fixture
def refs(tmp_path):
    """Cases of different sizes, p3 with two visits."""
    made = {}
    for number, name in enumerate(("p1", "p2", "p3_visit1", "p3_visit2", "p4")):
        path = tmp_path / f"{name}.nii.gz"
        path.write_bytes(bytes(10 + number))
        made[name] = VolumeRef(case_id=name, images=(path,), label=path, patient=name.partition("_")[0])
    return made


def divided(refs, training, held_out):
    sides = [tuple(refs[name] for name in names) for names in (training, held_out)]
    return CaseDivision.of(Split(training=sides[0], validation=sides[1], held_out=True))


def test_a_case_is_known_again_by_its_id_and_the_size_of_its_files(refs, tmp_path):
    division = divided(refs, ["p1", "p2"], ["p4"])
    assert [division.side(ref) for ref in refs.values()] == ["trained on", "trained on", "", "", "held out"]
    refs["p1"].images[0].write_bytes(bytes(99))
    assert division.side(refs["p1"]) == ""
    series = tmp_path / "series"
    series.mkdir()
    for name in ("a.dcm", "b.dcm"):
        (series / name).write_bytes(bytes(7))
    assert case_bytes(VolumeRef(case_id="s", images=(series, refs["p2"].images[0]))) == 14 + 11
    assert case_bytes(VolumeRef(case_id="s", images=(Path("none.nii"),))) == 0
    both = (refs["p1"],)
    assert CaseDivision.of(Split(training=both, validation=both, held_out=False)).held_out == {}


def test_an_ensemble_has_seen_what_one_of_its_models_has(refs):
    folds = [divided(refs, ["p1", "p2"], ["p4"]), divided(refs, ["p1", "p4"], ["p2", "p3_visit1"])]
    models = [SimpleNamespace(spec=SimpleNamespace(division=division)) for division in folds]
    found = _division(models)
    assert set(found.training) == {"p1", "p2", "p4"}
    assert set(found.held_out) == {"p3_visit1"}
    assert _division([*models, SimpleNamespace(spec=SimpleNamespace(division=None))]) is None


def test_what_counts_as_held_out_does_not_depend_on_where_a_case_stands_today(refs):
    division = divided(refs, ["p1", "p3_visit1"], ["p4"])
    unseen, notices = held_out_cases(division, refs.values())
    # The second visit is of a patient who was trained on; p2 came later.
    assert [ref.case_id for ref in unseen] == ["p2", "p4"]
    assert notices == ["1 of the 2 cases were not in the data of the training."]
    assert held_out_cases(divided(refs, ["p1", "p2"], ["p3_visit1", "p3_visit2", "p4"]), refs.values())[1] == []


def test_of_another_data_set_all_cases_are_unseen_whatever_their_names(refs):
    division = CaseDivision(training={"p1": 1, "p2": 2}, held_out={"p4": 3})
    unseen, (notice,) = held_out_cases(division, refs.values())
    assert len(unseen) == 5
    assert "none of the 5 labeled cases was trained on or held out" in notice


@pytest.mark.parametrize(
    ("known", "ids", "words"),
    [
        (lambda refs: divided(refs, ["p1", "p2"], ["p4"]), ["p3_visit1", "p3_visit2", "p4"], "2 of the 3 cases were"),
        (lambda refs: divided(refs, [*refs], []), r"was trained on every labeled case or patient of data", ""),
        (lambda refs: None, r"does not say which cases it was trained on.*train it again", ""),
    ],
)
def test_a_recipe_predicts_what_its_model_has_not_seen(known, ids, words, refs, tmp_path):
    said, division = io.StringIO(), known(refs)
    call = call_of(Path("data"), tmp_path / "run", console=Console(file=said, width=500))
    call.out.mkdir()
    spec = small_spec(division=None if division is None else division.to_plain())
    (call.out / "model.json").write_text(json.dumps(spec.to_plain()))
    cases = Cases(name="d", root=tmp_path, layout="csv", channels=("MR",), labels={}, refs=tuple(refs.values()))
    if isinstance(ids, str):
        with pytest.raises(InputError, match=ids):
            find_unseen_cases(call, cases)
        return
    assert [ref.case_id for ref in find_unseen_cases(call, cases)] == ids
    assert words in said.getvalue()
