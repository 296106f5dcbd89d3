from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import voxelocity
from voxelocity.core.requests.train import TrainRequest
from voxelocity.planning import make_plan
from voxelocity.training.resume import (
    SavedRun,
    conflicting_options,
    differing_keys,
    in_short,
    other_data,
    other_path,
    resumed_keys,
    saved_run_record,
)
from voxelocity_observe.core.errors import ConfigError, InterruptedRunError, OutputError


def conflicts(saved, **given):
    """What `train` says of these options."""
    return conflicting_options(saved, TrainRequest.of_call(given, out="run"))


@pytest.fixture(scope="module")
def cases(tiny_msd):
    return voxelocity.open(tiny_msd)


@pytest.fixture(scope="module")
def record(cases, tiny_plan):
    return saved_run_record(make_plan(cases, fold=1, seed=3, device="cpu", overrides=tiny_plan))


@pytest.fixture(scope="module")
def saved(record):
    return SavedRun.parse(record, where="run.yaml")


def test_a_record_gives_back_how_the_run_was_begun(saved, record, tiny_msd):
    assert (saved.fold, saved.plan.seed, saved.device) == (1, 3, "cpu")
    assert saved.dataset["path"] == str(tiny_msd.resolve())
    assert saved.dataset["labels"] == {0: "background", 1: "ball", 2: "core"}
    assert saved.case_ids == {
        "training": ["case_0", "case_2", "case_3", "case_5"],
        "validation": ["case_1", "case_4"],
    }
    assert list(record)[-1] == "cases"


def test_the_same_data_differs_in_nothing(saved, cases):
    assert other_path(saved, cases) == []
    assert other_data(saved, cases) == []


def test_a_data_set_in_another_place_is_named(saved, cases):
    (line,) = other_path(saved, replace(cases, root=Path("/elsewhere")))
    assert line == f"path: {saved.dataset['path']} -> /elsewhere"


def test_cases_that_came_and_went_are_named(saved, cases):
    gone = [ref for ref in cases.refs if ref.case_id not in ("case_0", "case_4")]
    came = [replace(gone[0], case_id=f"new_{i}", fold=0) for i in range(4)]
    assert other_data(saved, replace(cases, refs=(*gone, *came))) == [
        "4 new training cases: new_0, new_1, new_2 and 1 more",
        "1 training case missing: case_0",
        "1 validation case missing: case_4",
    ]


def test_a_case_that_changed_sides_is_named(saved, cases):
    refs = tuple(replace(ref, fold=1) if ref.case_id == "case_0" else ref for ref in cases.refs)
    assert other_data(saved, replace(cases, refs=refs)) == [
        "1 training case missing: case_0",
        "1 new validation case: case_0",
    ]


def test_other_labels_and_channels_are_named(saved, cases):
    changed = replace(cases, labels={0: "background", 1: "ball", 3: "core"}, channels=("CT",))
    assert other_data(saved, changed) == [
        "channels: ['MRI'] -> ['CT']",
        "labels.2: core -> None",
        "labels.3: None -> core",
    ]


def test_what_an_earlier_version_did_not_store_is_not_compared(saved, cases):
    dataset = {key: value for key, value in saved.dataset.items() if key not in ("labels", "path")}
    old = replace(saved, dataset=dataset, case_ids={})
    fewer = replace(cases, refs=cases.refs[:3], root=Path("/elsewhere"))
    assert other_path(old, fewer) + other_data(old, fewer) == []
    renamed = replace(cases, labels={0: "background", 1: "ball", 2: "stone"})
    assert other_data(old, renamed) == ["classes: ['background', 'ball', 'core'] -> ['background', 'ball', 'stone']"]


def test_options_that_are_left_out_or_equal_differ_in_nothing(saved, tiny_plan):
    assert conflicts(saved) == []
    equal = {"fold": 1, "time_budget_s": 0.0, "seed": 3, "overrides": tiny_plan}
    assert conflicts(saved, **equal) == []
    assert conflicts(saved, overrides=saved.plan.to_plain()) == []


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"fold": 3}, "fold=3 where 1 is stored"),
        ({"fold": "all"}, "fold='all' where 1 is stored"),
        ({"seed": 0}, "seed=0 where 3 is stored"),
        ({"time_budget_s": 10.0}, "time_budget_s=10.0 where none is stored"),
        ({"time_budget": "10s"}, "time_budget='10s' where none is stored"),
        ({"overrides": {"train.steps": 8}}, "train.steps=8 where 6 is stored"),
        ({"overrides": {"network": {"widths": [4, 9]}}}, "network.widths=[4, 9] where [4, 8] is stored"),
        ({"seed": 3, "overrides": {"seed": 5}}, "seed=5 where 3 is stored"),
    ],
)
def test_an_option_that_differs_is_named_with_both_values(saved, given, line):
    assert conflicts(saved, **given) == [line]


def test_how_ranks_share_the_work_and_how_a_plan_is_made_may_differ(saved):
    given = {"parallel.balance": "equal", "parallel": {"silence_s": 60.0}, "planner.measure": "never"}
    assert conflicts(saved, overrides=given) == []
    keys = resumed_keys(saved, {**given, "train.steps": 8}, where="run.yaml")
    assert (keys["parallel.balance"], keys["parallel.silence_s"], keys["train.steps"]) == ("equal", 60.0, 6)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"plan": 3}, r"run.yaml: 'plan' is 3, not keys and values; start again with --overwrite"),
        ({"dataset": [*range(9999)]}, r"run.yaml: 'dataset' is \[0, 1, .*, not keys and values; start again"),
        ({"dataset": {"fold": "x"}}, r"run.yaml names no fold \('x'\); start again"),
        ({"cases": [1]}, r"run.yaml: 'cases' is \[1\], not keys and values; start again"),
        ({"cases": {"training": 3}}, r"run.yaml: 'cases' is damaged; start again"),
        ({"cases": {"training": ["case_1", [2]]}}, r"run.yaml: 'cases' is damaged; start again"),
        ({"plan": {"seed": "x"}}, r"run.yaml: .*not valid.*; restore it, or start again with --overwrite"),
    ],
)
def test_a_damaged_part_is_named_with_its_cure(record, change, text):
    with pytest.raises(ConfigError, match=text) as caught:
        SavedRun.parse({**record, **change}, where="run.yaml")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"seed: \xff\xfe", "cannot be read .*utf-8.*"),
        (b"a: [1", "cannot be read .*"),
        (b"a: 2001-99-99", "cannot be read .*month.*"),
        (b"- a", "holds no run, but .*'a'.*"),
        (b"", "holds no run, but None"),
        (b"seed: 1", "lacks 'dataset'"),
    ],
)
def test_a_damaged_record_is_named_with_its_cure(tmp_path, content, text):
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"train: .*run\.yaml {text}; start again with --overwrite"):
        SavedRun.read(path)


def test_differing_keys_name_both_values():
    old = {"a": 1, "b": {"c": 2, "d": 3}}
    new = {"a": 1, "b": {"c": 5, "d": 3}, "e": 4}
    assert differing_keys(old, new) == ["b.c: 2 -> 5", "e: None -> 4"]
    assert differing_keys({1: "a"}, {"x": "b"}) == ["1: a -> None", "x: None -> b"]


def test_damaged_case_ids_are_told_apart_from_the_true_ones(saved, cases):
    damaged = replace(saved, case_ids={**saved.case_ids, "validation": [[1], "case_1", "case_4"]})
    assert other_data(damaged, cases) == ["1 validation case missing: [1]"]


def test_many_lines_are_cut_short():
    assert in_short(["a", "b", "c"]) == "a; b; c"
    assert in_short(["a", "b", "c", "d"]) == "a; b; c; ..."


@pytest.mark.parametrize(
    ("said", "in_python"),
    [
        (
            "folder x; choose another with -o, or --overwrite it",
            "folder x; choose another with out=..., or overwrite=True it",
        ),
        ("give --fold 1, --fold all, or leave out --from", "give fold=1, fold='all', or leave out start_from=..."),
        ("a longer --time-budget 5m on --device cpu", "a longer time_budget='5m' on device='cpu'"),
        ("leave --from a:b out, --device x out", "leave start_from='a:b' out, device='x' out"),
        ("add --set data.cache.tier=disk.", 'add overrides={"data.cache.tier": "disk"}.'),
        ("`voxelocity train --resume a` or --no-such b--set-c", "`voxelocity train --resume a` or --no-such b--set-c"),
    ],
)
def test_python_users_read_keywords_where_others_read_options(said, in_python):
    with pytest.raises(OutputError) as caught, TrainRequest.of_call({}, out="run").errors_as_written():
        raise OutputError(f"train: {said}")
    assert str(caught.value) == f"vx.train: {in_python}"
    with pytest.raises(InterruptedRunError) as caught, TrainRequest(out="run").errors_as_written():
        raise InterruptedRunError(f"train: {said}", signal_number=2)
    assert (str(caught.value), caught.value.signal_number) == (f"train: {said}", 2)
