"""`check` finds what differs on a user's own chain and data, and only that."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.transforms import (
    Compose,
    EnsureChannelFirstd,
    Flipd,
    Lambdad,
    LoadImaged,
    OneOf,
    RandAffined,
    RandFlipd,
    RandGaussianNoised,
    RandScaleIntensityd,
    RandSpatialCropSamplesd,
)

from voxelocity.monai.chain import ChainError, compile
from voxelocity.monai.check import CheckRow, CheckTable, check
from voxelocity.monai.lower import Lowering
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.spans import SpanRecorder


def _item() -> dict[str, Any]:
    return {"image": MetaTensor(torch.rand(1, 6, 6, 6)), "label": torch.ones(1, 6, 6, 6, dtype=torch.uint8)}


def _chain() -> Compose:
    return Compose(
        [
            Lambdad("image", lambda x: x + 1),
            RandSpatialCropSamplesd(["image", "label"], (4, 4, 4), num_samples=2, random_size=False),
            RandFlipd(["image", "label"], 0.5),
            OneOf([RandScaleIntensityd("image", 0.2, prob=1.0), RandGaussianNoised("image", 1.0)]),
        ]
    )


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_chain_of_known_transforms_is_equal(is_compiled: bool) -> None:
    table = check(compile(_chain()) if is_compiled else _chain(), _item(), num_draws=5)
    assert table.is_equal
    assert [(row.stage, row.how) for row in table.rows] == [
        ("Lambdad", "MONAI"),
        ("RandSpatialCropSamplesd", "engine"),
        ("RandFlipd", "engine"),
        ("OneOf", "engine"),
        ("the whole chain", "both"),
    ]


@pytest.mark.parametrize("image_only", [True, False])
def test_scans_whose_headers_hold_no_numbers_are_equal(image_only: bool, tmp_path: Path) -> None:
    path = tmp_path / "scan.nii.gz"
    nibabel.save(nibabel.Nifti1Image(np.arange(60, dtype=np.int16).reshape(3, 4, 5), np.eye(4)), path)
    keys = ["image"]
    table = check(
        Compose([LoadImaged(keys, image_only=image_only), EnsureChannelFirstd(keys), RandFlipd(keys, 0.5)]),
        {"image": str(path)},
    )
    assert [row.words for row in table.rows] == [()] * 4
    assert table.is_equal


def test_neither_the_chain_nor_the_item_is_changed() -> None:
    chain, item = _chain(), _item()
    chain.set_random_state(3)
    before = [part.R.get_state()[1].copy() for part in chain.transforms[1:]]
    image = item["image"].clone()
    check(chain, item)
    assert all(
        np.array_equal(part.R.get_state()[1], state) for part, state in zip(chain.transforms[1:], before, strict=True)
    )
    assert torch.equal(item["image"], image)


def test_a_wrong_result_is_shown_in_its_row_and_in_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(transform: Any, data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "image": data["image"] * 1.5, "label": 1 - data["label"]}

    monkeypatch.setattr(
        sys.modules["voxelocity.monai.check"],
        "lowerings",
        lambda exact_noise: {RandFlipd: Lowering(apply=wrong)},
    )
    table = check([RandFlipd(["image", "label"], prob=0.0)], _item(), num_draws=1)
    assert not table.is_equal
    assert [(row.labels, row.is_equal) for row in table.rows] == [(1.0, False)] * 2
    assert [row.largest for row in table.rows] == [1.0, 1.0]
    assert str(table).splitlines()[2].startswith("RandFlipd        engine   1.0e+00             100.00% differ")


def test_the_table_is_printed_with_what_else_differs() -> None:
    row = CheckRow(
        stage="Flipd",
        how="engine",
        largest=2.5e-7,
        labels=0.0,
        words=("image: float32 and float64",),
        ms_monai=1.234,
        ms_engine=0.5,
        tolerance=1e-4,
    )
    assert str(CheckTable(rows=[row], num_draws=3)).splitlines() == [
        "transform  runs by  largest difference  labels  MONAI ms  ms    verdict",
        "---------  -------  ------------------  ------  --------  ----  -------",
        "Flipd      engine   2.5e-07             equal   1.23      0.50  differs",
        "Flipd: image: float32 and float64",
        "3 draws; noise is drawn voxel by voxel from MONAI's generators.",
    ]


def test_metadata_that_monai_shares_between_samples_do_not_make_results_differ(tmp_path: Path) -> None:
    path = tmp_path / "scan.nii.gz"
    nibabel.save(nibabel.Nifti1Image(np.random.default_rng(0).random((8, 8, 8), np.float32), np.eye(4)), path)
    keys = ["image"]
    crop = RandSpatialCropSamplesd(keys, (6, 6, 6), num_samples=2, random_size=False)
    turn = RandAffined(keys, prob=1.0, scale_range=(0.3, 0.3, 0.3))
    table = check(Compose([LoadImaged(keys), EnsureChannelFirstd(keys), crop, turn]), {"image": str(path)}, num_draws=3)
    assert table.is_equal
    row = table.rows[-2]
    (words,) = row.metadata
    assert words.startswith("0.image: metadata 'pixdim': ")
    assert "MONAI's differs from the spacing of its own affine; ours does not" in words
    lines = str(table).splitlines()
    assert lines[5].split("  ")[-1].strip() == "equal, metadata not"
    assert len(lines) == 9


def test_the_whole_chain_takes_as_long_as_its_parts() -> None:
    table = check(_chain(), _item(), num_draws=3)
    *parts, whole = table.rows
    assert whole.ms_monai == pytest.approx(sum(row.ms_monai for row in parts))
    assert whole.ms_engine > 0


def test_a_failing_transform_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"applying transform <monai\.transforms\.spatial\.dictionary\.Flipd"):
        check([Flipd("missing")], _item())


def test_no_draws_and_chains_that_cannot_be_split_are_refused() -> None:
    with pytest.raises(ConfigError, match=re.escape("num_draws is 0; at least one draw is needed")):
        check(_chain(), _item(), num_draws=0)
    with pytest.raises(ChainError, match=r"lazy=True cannot be split"):
        check(Compose([Flipd("image")], lazy=True), _item())


def test_the_whole_check_is_one_phase_of_a_time_line():
    with SpanRecorder() as recorder:
        check(_chain(), _item())
    spans = recorder.take()
    assert [span.name for span in spans if span.depth == 0 or span.is_phase] == ["check"]
    assert "RandFlipd" in {span.name for span in spans}
