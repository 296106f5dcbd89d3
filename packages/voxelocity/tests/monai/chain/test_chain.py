"""Chains split at their first random transform, and the plan of what happens to each."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from monai.transforms import (
    Compose,
    EnsureTyped,
    Lambdad,
    OneOf,
    RandFlipd,
    RandLambdad,
    RandScaleIntensityd,
    ScaleIntensityd,
)

from voxelocity.monai.chain import ChainError, ChainPlan, PlanRow, as_compose, compile, split


def _names(transforms: tuple[object, ...]) -> list[str]:
    return [type(transform).__name__ for transform in transforms]


def test_a_chain_is_split_at_its_first_random_transform() -> None:
    parts = split(Compose([EnsureTyped("a"), ScaleIntensityd("a"), RandFlipd("a"), EnsureTyped("a")]))
    assert _names(parts.fixed) == ["EnsureTyped", "ScaleIntensityd"]
    assert _names(parts.random) == ["RandFlipd", "EnsureTyped"]


def test_nested_chains_are_taken_apart_and_keep_their_random_states() -> None:
    flip = RandFlipd("a")
    chain = Compose([Compose([EnsureTyped("a"), Compose([ScaleIntensityd("a"), flip])]), EnsureTyped("a")])
    chain.set_random_state(7)
    state = flip.R.get_state()[1].copy()
    parts = split(chain)
    assert _names(parts.fixed) == ["EnsureTyped", "ScaleIntensityd"]
    assert _names(parts.random) == ["RandFlipd", "EnsureTyped"]
    assert np.array_equal(flip.R.get_state()[1], state)


@pytest.mark.parametrize("options", [{"map_items": False}, {"log_stats": "a logger"}])
def test_a_nested_chain_that_walks_lists_otherwise_or_logs_stays_whole(options: dict[str, Any]) -> None:
    parts = split(Compose([EnsureTyped("a"), Compose([ScaleIntensityd("a")], **options)]))
    assert _names(parts.random) == ["Compose"]


def test_a_bare_function_and_a_random_container_end_the_part_that_is_cached() -> None:
    for boundary in (lambda item: item, OneOf([EnsureTyped("a"), ScaleIntensityd("a")])):
        parts = split(Compose([EnsureTyped("a"), boundary, ScaleIntensityd("a")]))
        assert len(parts.fixed) == 1
        assert parts.random[0] is boundary


@pytest.mark.parametrize("lazy", [True, None])
def test_a_lazy_chain_is_refused_with_the_cure(lazy: bool | None) -> None:
    with pytest.raises(ChainError, match=rf"lazy={lazy} cannot be split: .*Set lazy=False"):
        split(Compose([EnsureTyped("a")], lazy=lazy))


def test_a_chain_that_unpacks_items_is_refused() -> None:
    with pytest.raises(
        ChainError, match=r"unpack_items=True cannot be split: its transforms then do not pass on items"
    ):
        split(Compose([EnsureTyped("a")], unpack_items=True))


def test_what_is_no_transform_is_refused_by_name() -> None:
    with pytest.raises(ChainError, match=r"compile: 3 is a int, not a transform; give a monai.transforms.Compose"):
        as_compose([EnsureTyped("a"), 3])  # type: ignore[list-item]


def test_a_list_of_transforms_keeps_their_random_states() -> None:
    flip = RandFlipd("a").set_random_state(3)
    state = flip.R.get_state()[1].copy()
    assert as_compose([flip]).transforms == (flip,)
    assert np.array_equal(flip.R.get_state()[1], state)


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
        ("Lambdad", "cached", "MONAI", "Lambdad has no faster equivalent", None),
        ("RandFlipd", "drawn again", "engine", "", None),
        ("RandScaleIntensityd", "drawn again", "engine", "", None),
        ("RandLambdad", "drawn again", "MONAI", "not among those that can be lowered", None),
        ("_blurred", "drawn again", "MONAI", "not one of MONAI's", None),
        ("EnsureTyped", "drawn again", "engine", "", None),
        ("(fused passes)", "drawn again", "engine", "", None),
    ]
    assert chain.plan().notes == ["Run unchanged, sample by sample: RandLambdad, _blurred."]


def test_costs_are_reported_once_there_are_some() -> None:
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
    assert compile([EnsureTyped("a")]).plan().notes == ["No transform is random, so the whole result is cached."]


def test_a_chain_without_the_engine_says_so() -> None:
    rows = compile(Compose([EnsureTyped("a"), RandFlipd("a")]), lower=False).plan().rows
    assert [(row.how, row.reason) for row in rows] == [("MONAI", "turned off")] * 2
