"""The plan as a person reads it."""

from __future__ import annotations

import re
from typing import Any

import torch
from monai.transforms import Compose, EnsureTyped, Lambdad, OneOf, RandFlipd, RandLambdad, RandScaleIntensityd

from voxelocity.interop.monai.chain import ChainPlan, PlanRow, compile


def _blurred(item: Any) -> Any:
    return item


def test_a_plan_is_a_table_with_notes() -> None:
    rows = [
        PlanRow(stage="Spacingd", part="cached", how="engine", reason="", ms=12.3456),
        PlanRow(stage="Mine", part="drawn again", how="MONAI", reason="of your own", ms=None),
    ]
    assert str(ChainPlan(rows=rows, notes=["Run unchanged, sample by sample: Mine."])).splitlines() == [
        "stage     result       runs by  ms a call  why it runs unchanged",
        "--------  -----------  -------  ---------  ---------------------",
        "Spacingd  cached       engine       12.35",
        "Mine      drawn again  MONAI            -  of your own",
        "Run unchanged, sample by sample: Mine.",
    ]


def test_a_chain_tells_of_each_transform_where_it_runs_and_why() -> None:
    chain = compile(
        [
            Lambdad("a", _blurred),
            RandFlipd("a", 0.5),
            OneOf([RandScaleIntensityd("a", 0.1), RandLambdad("a", _blurred)]),
            _blurred,
            EnsureTyped("a"),
        ]
    )
    assert [(row.stage, row.part, row.how, row.reason, row.ms) for row in chain.plan().rows] == [
        ("Lambdad", "cached", "MONAI", "Lambdad has no faster equivalent here", None),
        ("RandFlipd", "drawn again", "engine", "", None),
        ("RandScaleIntensityd", "drawn again", "engine", "", None),
        ("RandLambdad", "drawn again", "MONAI", "not among those that can be lowered", None),
        ("_blurred", "drawn again", "MONAI", "not one of MONAI's: it may do anything", None),
        ("EnsureTyped", "drawn again", "engine", "", None),
        ("(fused passes)", "drawn again", "engine", "", None),
    ]
    assert chain.plan().notes == ["Run unchanged, sample by sample: RandLambdad, _blurred."]


def test_costs_are_told_once_there_are_some() -> None:
    chain = compile([Lambdad("a", _blurred), RandFlipd("a", 1.0), _blurred])
    chain({"a": torch.rand(1, 8, 8)})
    assert all(row.ms is not None and row.ms >= 0 for row in chain.plan().rows)
    assert re.fullmatch(
        r"Run unchanged, sample by sample: _blurred, \d+% of the random part's time so far\.", chain.plan().notes[0]
    )


def test_a_chain_of_one_part_says_what_that_means() -> None:
    assert compile([RandFlipd("a")]).plan().notes == [
        "Nothing is cached: the chain begins with a random transform or a bare function."
    ]
    assert compile([EnsureTyped("a")]).plan().notes == [
        "Nothing is drawn: the chain is the same every time, so its whole result is cached."
    ]


def test_a_chain_without_the_engine_says_so() -> None:
    rows = compile(Compose([EnsureTyped("a"), RandFlipd("a")]), lower=False).plan().rows
    assert [(row.how, row.reason) for row in rows] == [("MONAI", "turned off")] * 2
