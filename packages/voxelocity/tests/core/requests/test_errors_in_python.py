"""Errors of calls name the call and its keywords, as `vx.` users write them."""

import pytest

import voxelocity as vx
from voxelocity_observe.core.errors import VoxelocityError


def evaluate_without_pairs(folder, tiny_msd):
    vx.evaluate(folder, tiny_msd / "labelsTr")


def predict_elsewhere(folder, tiny_msd):
    vx.predict(folder / "no-model", tiny_msd / "imagesTr", folder / "out", runtime="tpu")


def plan_nothing(folder, tiny_msd):
    vx.plan("Task99_Tiny")


def fold_without_cases(folder, tiny_msd):
    vx.plan(vx.open(tiny_msd), fold=7)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (evaluate_without_pairs, "vx.evaluate: "),
        (predict_elsewhere, "vx.predict: runtime='tpu' is not known"),
        (plan_nothing, "vx.plan: cases is 'Task99_Tiny'"),
        (fold_without_cases, "choose one of them or fold='all'"),
    ],
)
def test_an_error_names_what_was_called(call, named, tiny_msd, tmp_path):
    with pytest.raises(VoxelocityError) as caught:
        call(tmp_path, tiny_msd)
    assert named in str(caught.value)
    assert "--" not in str(caught.value)


@pytest.mark.parametrize("budget", ["5m", 300, 300.0])
def test_a_time_is_a_text_or_seconds_wherever_a_call_takes_one(budget, tiny_msd):
    planned = vx.plan(vx.open(tiny_msd), time_budget=budget, device="cpu", overrides={"planner.measure": "never"})
    assert planned.plan.train.time_budget_s == 300.0


def test_a_plan_is_one_line_in_a_prompt_and_tables_in_a_notebook(tiny_msd, tiny_plan):
    planned = vx.plan(vx.open(tiny_msd), device="cpu", overrides={**tiny_plan, "planner.measure": "never"})
    assert repr(planned).startswith("Planned(Tiny, fold 0: unet on cpu, ")
    assert "16 x 16 x 16 a step, 6 steps" in repr(planned)
    assert len(repr(planned)) < 200
    shown = planned._repr_html_().replace("&lt;wbr&gt;", "")
    assert [choice.key for choice in planned.choices if choice.key not in shown] == []
