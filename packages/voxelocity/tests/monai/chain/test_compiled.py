"""A compiled chain: MONAI's results for MONAI's seeds, its fixed part kept under all that decides on it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import monai.data
import nibabel
import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.transforms import (
    Compose,
    CropForegroundd,
    EnsureChannelFirstd,
    Lambdad,
    LoadImaged,
    NormalizeIntensityd,
    OneOf,
    RandCropByPosNegLabeld,
    RandFlipd,
    RandGaussianNoised,
    RandScaleIntensityd,
    RandZoomd,
    ScaleIntensityd,
    Spacingd,
)

from shared.lowered import metadata_tracked
from voxelocity.monai.chain import ChainError, CompiledChain, compile
from voxelocity.monai.difference import differences_of

KEYS = ["image", "label"]


@pytest.fixture
def files(tmp_path: Path) -> list[dict[str, str]]:
    """Three scans with the headers that nibabel writes, whose scale is not a number."""
    rng = np.random.default_rng(0)
    items = []
    for number in range(3):
        item = {}
        for key, values in (("image", rng.normal(50, 20, (20, 18, 16))), ("label", rng.random((20, 18, 16)) > 0.7)):
            path = tmp_path / f"{key}{number}.nii.gz"
            nibabel.save(nibabel.Nifti1Image(values.astype(np.int16), np.diag([1, 2, 3, 1])), path)
            item[key] = str(path)
        items.append(item)
    return items


def _chain() -> Compose:
    return Compose(
        [
            LoadImaged(KEYS),
            EnsureChannelFirstd(KEYS),
            NormalizeIntensityd("image"),
            RandCropByPosNegLabeld(KEYS, "label", (8, 8, 8), num_samples=2),
            RandFlipd(KEYS, 0.5, spatial_axis=0),
            RandScaleIntensityd("image", 0.2, prob=0.5),
        ]
    )


def _worst(theirs: Any, ours: Any) -> float:
    found = list(differences_of(theirs, ours))
    assert [difference.words for difference in found if difference.words] == []
    return max(difference.relative for difference in found)


def _plus_one(value: Any) -> Any:
    return value + 1


def _calls(chain: CompiledChain) -> int:
    return chain.chain.fixed.stages[0].num_calls


@pytest.mark.parametrize("place", ["memory", "off", "folder"])
def test_items_are_those_of_monai_for_the_same_seed(place: str, files: list[dict[str, str]], tmp_path: Path) -> None:
    theirs, ours = _chain(), compile(_chain(), cache=str(tmp_path / "kept") if place == "folder" else place)
    theirs.set_random_state(4)
    ours.set_random_state(4)
    for item in files * 3:
        assert _worst(theirs(item), ours(item)) < 1e-5
    assert _calls(ours) == (9 if place == "off" else 3)


def test_items_of_files_are_kept_for_later_runs(files: list[dict[str, str]], tmp_path: Path) -> None:
    first, later = (compile(_chain(), cache=tmp_path / "kept") for _ in range(2))
    made = [first.prepare(item) for item in files]
    found = [later.prepare(item) for item in files]
    assert (_calls(first), _calls(later)) == (3, 0)
    assert _worst(made, found) == 0.0
    assert isinstance(found[0]["image"].meta["pixdim"], np.ndarray)


@pytest.mark.parametrize("names", ["voxelocity", "monai"])
def test_a_data_set_finds_its_items_in_the_cache_of_the_chain(names: str, files: list[dict[str, str]]) -> None:
    import voxelocity.monai

    module = voxelocity.monai if names == "voxelocity" else monai.data
    chain = compile(_chain())
    loader = module.DataLoader(module.Dataset(files, chain), batch_size=3)
    for _ in range(3):
        assert next(iter(loader))["image"].shape == (6, 1, 8, 8, 8)
    assert _calls(chain) == 3


def test_a_changed_file_is_prepared_again(files: list[dict[str, str]]) -> None:
    chain = compile(_chain())
    before = chain.prepare(files[0])["label"].sum()
    nibabel.save(nibabel.Nifti1Image(np.ones((9, 9, 9), np.int16), np.eye(4)), files[0]["label"])
    assert chain.prepare(files[0])["label"].sum() == 729 != before


@pytest.mark.parametrize(
    "other",
    [
        lambda folder: compile(Compose([Lambdad("a", lambda x: x + 2)]), cache=folder),
        lambda folder: compile(Compose([Lambdad("a", lambda x: x + 1), ScaleIntensityd("b")]), cache=folder),
        lambda folder: compile(Compose([Lambdad("a", lambda x: x + 1)]), cache=folder, lower=False),
        lambda folder: compile(Compose([Lambdad("a", lambda x: x + 1)], map_items=False), cache=folder),
    ],
    ids=["other code", "another transform", "by MONAI's transforms", "lists walked otherwise"],
)
def test_what_decides_on_a_kept_item_gives_another_entry(
    other: Callable[[Path], CompiledChain], tmp_path: Path
) -> None:
    item = {"a": 1, "b": torch.rand(1, 3)}
    first = compile(Compose([Lambdad("a", lambda x: x + 1)]), cache=tmp_path)
    same = compile(Compose([Lambdad("a", lambda x: x + 1)]), cache=tmp_path)
    for chain in (first, same, other(tmp_path)):
        chain.prepare(item)
    assert (_calls(first), _calls(same)) == (1, 0)
    assert len(list(tmp_path.glob("*.pt"))) == 2


def test_items_without_metadata_are_kept_apart(tmp_path: Path) -> None:
    chain = compile(Compose([ScaleIntensityd("a")]), cache=tmp_path)
    item = {"a": np.random.default_rng(0).random((1, 4, 4))}
    assert type(chain(item)["a"]) is MetaTensor
    with metadata_tracked(False):
        assert type(chain(item)["a"]) is torch.Tensor


@pytest.mark.parametrize("lower", [True, False])
def test_no_metadata_of_the_item_or_of_what_is_kept_are_changed(lower: bool) -> None:
    image = MetaTensor(torch.rand(1, 8, 8, 8), affine=torch.eye(4), meta={"pixdim": np.ones(8)})
    # MONAI writes the spacing into the metadata that it is given.
    fixed, drawn = Spacingd("image", (2.0, 2.0, 2.0)), RandZoomd("image", prob=1.0, min_zoom=2.0, max_zoom=2.0)
    compiled = compile(Compose([fixed, drawn]), lower=lower)
    for _ in range(2):
        assert compiled({"image": image})["image"].meta["pixdim"][1] == 1.0
        assert compiled.prepare({"image": image})["image"].meta["pixdim"][1] == 2.0
        assert image.meta["pixdim"][1] == 1.0


def test_neither_the_item_nor_what_is_kept_is_changed() -> None:
    def add_in_place(value: torch.Tensor) -> torch.Tensor:
        value += 1
        return value

    item = {"a": torch.zeros(1, 3, 3)}
    chain = compile(Compose([Lambdad("a", add_in_place), RandFlipd("a", 1.0), Lambdad("a", add_in_place)]))
    for _ in range(3):
        made = chain(item)["a"]
        assert torch.equal(made, torch.full((1, 3, 3), 2.0))
        made += 5
    chain(item, start=0, end=1)
    assert torch.equal(item["a"], torch.zeros(1, 3, 3))


def test_copies_draw_and_make_the_same(files: list[dict[str, str]]) -> None:
    chain = compile(_chain())
    chain.set_random_state(2)
    chain(files[0])
    for other in (copy.deepcopy(chain), pickle.loads(pickle.dumps(chain))):
        before = copy.deepcopy(chain)
        assert _worst(before(files[1]), other(files[1])) == 0.0
        assert str(other.plan()).splitlines()[0] == str(chain.plan()).splitlines()[0]


def test_a_compiled_chain_is_compiled_as_the_chain_it_was_made_of() -> None:
    chain = Compose([Lambdad("a", _plus_one), RandFlipd("a", 0.5)])
    twice = compile(compile(chain))
    assert twice.compose is chain
    assert [row.part for row in twice.plan().rows] == ["cached", "drawn again", "drawn again"]


def test_a_part_of_a_chain_is_run_as_compose_does() -> None:
    chain = Compose([Lambdad("a", lambda x: x + 1), Lambdad("a", lambda x: x * 10), Lambdad("a", lambda x: x - 3)])
    ours = compile(chain)
    for start, end in ((0, 1), (1, 3), (1, None), (0, None), (2, 2)):
        assert ours({"a": 5}, start=start, end=end) == chain({"a": 5}, start=start, end=end)
    with pytest.raises(ValueError, match=r"'start' 2 and 'end' 1 do not name a part of a chain of 3 transforms"):
        ours({"a": 5}, start=2, end=1)


def test_a_lazy_call_is_refused() -> None:
    with pytest.raises(ChainError, match=r"cannot run with lazy=True; call the original Compose"):
        compile(Compose([RandFlipd("a")]))({"a": torch.zeros(1, 3, 3)}, lazy=True)


def test_a_chain_that_logs_is_refused() -> None:
    with pytest.raises(
        ChainError, match=r"log_stats=True is not compiled: .* Set log_stats=False, or use MONAI's Compose"
    ):
        compile(Compose([RandFlipd("a")], log_stats=True))


def test_what_cannot_be_read_is_reported_and_never_kept_for_other_runs(tmp_path: Path) -> None:
    numbers = (number for number in range(9))
    chain = Compose([Lambdad("a", lambda x: x + next(numbers))])
    with pytest.warns(UserWarning, match="for this run only") as messages:
        compiled = compile(chain, cache=tmp_path / "kept")
    assert len(messages) == 1
    text = str(messages[0].message)
    assert text.startswith(
        "voxelocity.monai.compile: prepared items are kept in memory, for this run only, and not in "
        f"{tmp_path / 'kept'}, because another run could not check whether they are still valid: transform 0 (Lambdad)"
    )
    assert text.endswith("Use only functions and plain values in the chain")
    assert compiled({"a": 1}) == {"a": 1}
    assert not (tmp_path / "kept").exists()
    assert compiled.plan().notes[-1].startswith("Never kept for later runs: transform 0 (Lambdad)")


def test_a_failing_transform_is_named_and_the_next_item_made() -> None:
    chain = compile(Compose([Lambdad("a", lambda x: 1 // x)]))
    with pytest.raises(
        RuntimeError, match=r"applying transform <monai\.transforms\.utility\.dictionary\.Lambdad"
    ) as failed:
        chain({"a": 0})
    assert isinstance(failed.value.__cause__, RuntimeError | ZeroDivisionError)
    assert chain({"a": 1}) == {"a": 1}


def test_noise_is_monais_where_it_is_asked_for() -> None:
    item = {"a": torch.zeros(1, 8, 8, 8)}
    theirs, ours = Compose([RandGaussianNoised("a", 1.0)]), compile([RandGaussianNoised("a", 1.0)], exact_noise=True)
    theirs.set_random_state(1)
    ours.set_random_state(1)
    assert _worst(theirs(item), ours(item)) < 1e-6


def test_a_chain_that_as_a_whole_is_random_keeps_nothing() -> None:
    chain = compile(OneOf([Lambdad("a", lambda x: x + 1), Lambdad("a", lambda x: x + 2)]))
    chain.set_random_state(0)
    assert {chain({"a": 0})["a"] for _ in range(40)} == {1, 2}


def test_lists_from_a_crop_are_prepared_one_by_one() -> None:
    chain = compile(Compose([CropForegroundd("a", "a"), RandFlipd("a", 1.0, spatial_axis=0)]))
    items = [{"a": torch.arange(1.0, 10).reshape(1, 3, 3)} for _ in range(2)]
    made = chain(items)
    assert [float(item["a"][0, 0, 0]) for item in made] == [7.0, 7.0]
