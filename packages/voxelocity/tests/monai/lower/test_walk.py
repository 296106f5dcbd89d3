import copy
from typing import Any

import numpy as np
import pytest
import torch
from monai.data.meta_tensor import MetaTensor
from monai.transforms import (
    Compose,
    EnsureTyped,
    Lambdad,
    NormalizeIntensityd,
    OneOf,
    Rand2DElasticd,
    Rand3DElasticd,
    RandAffined,
    RandAxisFlipd,
    RandFlipd,
    RandomOrder,
    RandRotate90d,
    RandShiftIntensityd,
    RandSimulateLowResolutiond,
    RandSpatialCropSamplesd,
    RandZoomd,
    SomeOf,
    StdShiftIntensityd,
)

from shared.lowered import check_lowered_alike
from shared.small_lowerings import SMALL
from voxelocity.monai.lower import PendingTensor, lowerings
from voxelocity.monai.lower.walk import Walker


def _item() -> dict[str, Any]:
    voxels = torch.arange(2 * 4 * 4 * 4, dtype=torch.float32).reshape(2, 4, 4, 4)
    affine = torch.tensor([[0.0, -2, 0, 5], [1, 0, 0, 6], [0, 0, 3, 7], [0, 0, 0, 1]], dtype=torch.float64)
    return {"image": MetaTensor(voxels, affine=affine, meta={"a": 1}), "name": "case", "notes": ["x"]}


def _flip() -> RandFlipd:
    return RandFlipd("image", prob=0.5, spatial_axis=0)


def _turn() -> RandRotate90d:
    return RandRotate90d("image", prob=0.7, max_k=3)


CHAINS = {
    "one after the other": lambda: Compose([_flip(), _turn(), _flip()]),
    "one of": lambda: Compose([OneOf([_flip(), _turn()], weights=[1.0, 3.0]), _flip()]),
    "random order": lambda: Compose([RandomOrder([_flip(), _turn(), _turn()])]),
    "some of": lambda: Compose([SomeOf([_flip(), _turn(), _flip()], num_transforms=(0, 3), replace=True)]),
    "nested": lambda: Compose([Compose([_flip(), OneOf([Compose([_turn(), _flip()]), _turn()])])]),
    "with one that runs unchanged": lambda: Compose([_flip(), RandShiftIntensityd("image", 0.5, prob=0.8), _turn()]),
    "several samples": lambda: Compose([RandSpatialCropSamplesd("image", 2, 3, random_size=False), _flip(), _turn()]),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_walk_gives_what_monai_gives_for_the_same_seed(name: str) -> None:
    chain, item = CHAINS[name](), _item()
    walker = Walker(chain.transforms, lowerings=SMALL)
    chain.set_random_state(11)
    theirs = [chain(copy.deepcopy(item)) for _ in range(12)]
    chain.set_random_state(11)
    ours = [walker(item) for _ in range(12)]
    for their_value, our_value in zip(theirs, ours, strict=True):
        for expected, made in zip(*(x if isinstance(x, list) else [x] for x in (their_value, our_value)), strict=True):
            assert torch.equal(expected["image"].as_tensor(), made["image"].as_tensor())
            assert torch.allclose(expected["image"].affine, made["image"].affine)
            assert expected["image"].meta["a"] == made["image"].meta["a"] == 1
            assert (made["name"], made["notes"]) == ("case", ["x"])


@pytest.mark.parametrize("transforms", [[], [_flip()], [Lambdad("image", lambda image: image)], [lambda item: item]])
def test_nothing_of_the_result_is_the_items_own(transforms: list[Any]) -> None:
    item = _item()
    kept = copy.deepcopy(item)
    result = Walker(transforms, lowerings=SMALL)(item)
    result["image"] += 1
    result["image"].meta["a"] = 2
    result["notes"].append("y")
    result["new"] = 1
    assert torch.equal(item["image"], kept["image"])
    assert item["image"].meta["a"] == 1
    assert item["notes"] == ["x"]
    assert "new" not in item


def test_metadata_of_the_result_are_its_own() -> None:
    item = _item()
    item["image"].meta |= {"pixdim": np.ones(8), "tags": {"a": [1]}}
    item["image"].applied_operations = [{"class": "Flip", "extra_info": {"axes": [0]}}]
    kept = copy.deepcopy(item["image"])
    # The first leaves the image where it is, so its metadata are not computed again; MONAI runs the last.
    intensity, unchanged = RandShiftIntensityd("image", 1.0, prob=1.0), Lambdad("image", lambda image: image)
    for transform in (intensity, RandFlipd("image", prob=1.0), unchanged):
        made = Walker([transform], lowerings=lowerings())(item)["image"]
        made.affine[0, 3] += 1
        made.meta["pixdim"] *= 2
        made.meta["tags"]["a"].append(2)
        made.applied_operations[0]["extra_info"]["axes"].append(1)
    assert torch.equal(item["image"].affine, kept.affine)
    assert np.array_equal(item["image"].meta["pixdim"], kept.meta["pixdim"])
    assert item["image"].meta["tags"] == kept.meta["tags"]
    assert item["image"].applied_operations == kept.applied_operations


@pytest.mark.parametrize("kind", [OneOf, RandomOrder, SomeOf])
def test_a_container_that_draws_can_be_inverted_if_nothing_in_it_is_lowered(kind: Any) -> None:
    item = _item()
    chain = Compose([kind([RandFlipd("image", prob=1.0), Compose([RandRotate90d("image", prob=1.0)])])])
    walker = Walker(chain.transforms, lowerings={})
    assert [stage.reason for stage in walker.stages] == ["nothing in it is lowered"]
    made = walker(item)
    assert not torch.equal(made["image"], item["image"])
    assert torch.equal(chain.inverse(made)["image"], item["image"])


@pytest.mark.parametrize("second", [NormalizeIntensityd("image", nonzero=True), StdShiftIntensityd("image", 1.0)])
def test_samples_of_one_crop_are_changed_apart(second: Any) -> None:
    crop = RandSpatialCropSamplesd("image", 3, 4, random_size=False)
    crop.set_random_state(0)
    theirs = [second({"image": sample["image"].clone()}) for sample in crop(_item())]
    crop.set_random_state(0)
    ours = Walker([crop, second], lowerings=lowerings())(_item())
    for expected, made in zip(theirs, ours, strict=True):
        assert torch.allclose(expected["image"], made["image"], rtol=1e-5)


def test_walking_lowered_transforms_makes_no_voxels() -> None:
    walker = Walker([_flip(), _turn()], lowerings=SMALL)
    assert walker.is_lowered
    item = _item()
    pending = walker.defer(item)["image"]
    assert isinstance(pending, PendingTensor)
    assert pending.source.data_ptr() == item["image"].data_ptr()


def test_stages_say_why_they_are_not_lowered() -> None:
    class Mine(RandFlipd):  # type: ignore[misc]
        pass

    lazy, logging = Compose([_flip()], lazy=True), OneOf([_flip()], log_stats="a logger")
    walker = Walker([_flip(), EnsureTyped("image"), Mine("image"), lazy, logging, lambda item: item], lowerings=SMALL)
    assert [stage.reason for stage in walker.stages] == [
        "",
        "not among those that can be lowered",
        "not one of MONAI's",
        "it is lazy: its transforms are resampled together, by MONAI",
        "log_stats is set: only MONAI's code logs the inputs of transforms",
        "not one of MONAI's",
    ]
    assert [stage.name for stage in walker.stages][-1].endswith("<lambda>")
    assert not walker.is_lowered


def test_an_error_names_the_transform_and_keeps_its_cause() -> None:
    with pytest.raises(RuntimeError, match=r"applying transform <monai.transforms.*RandFlipd") as caught:
        Walker([_flip()], lowerings=SMALL)({"other": np.zeros(3)})
    assert isinstance(caught.value.__cause__, KeyError)
    assert "image" in str(caught.value.__cause__)


def test_stages_count_their_calls_and_their_time() -> None:
    walker = Walker([RandSpatialCropSamplesd("image", 2, 3, random_size=False), _flip()], lowerings=SMALL)
    walker(_item())
    walker(_item())
    assert [stage.num_calls for stage in walker.stages] == [2, 6]
    assert all(stage.seconds > 0.0 for stage in walker.stages)


@pytest.mark.parametrize(
    "image",
    [
        torch.arange(4.0).reshape(1, 4),
        torch.arange(16.0).reshape(1, 1, 2, 2, 2, 2),
        torch.arange(8.0).reshape(1, 2, 2, 2).to_sparse().coalesce(),
    ],
)
def test_what_cannot_be_pending_goes_to_monai_as_a_copy(image: torch.Tensor) -> None:
    item = {"image": image, "name": "case"}
    walker = Walker([RandShiftIntensityd("image", 0.5, prob=1.0)], lowerings=lowerings())
    kept = image.clone()
    if image.layout == torch.sparse_coo:
        with pytest.raises(RuntimeError, match="applying transform"):
            walker(item)
    else:
        assert not torch.equal(walker(item)["image"], kept)
    assert torch.equal(image.to_dense(), kept.to_dense())
    assert walker.stages[0].num_by_monai == 1


@pytest.mark.parametrize(
    "kind", [Rand2DElasticd, Rand3DElasticd, RandAffined, RandAxisFlipd, RandSimulateLowResolutiond, RandZoomd]
)
def test_an_item_without_any_of_the_keys_is_what_monai_makes_of_it(kind: Any) -> None:
    given = {Rand2DElasticd: {"spacing": 2, "magnitude_range": (0, 1)}}
    given[Rand3DElasticd] = {"sigma_range": (1, 2), "magnitude_range": (0, 1)}
    transform = kind("image", prob=1.0, allow_missing_keys=True, **given.get(kind, {}))
    # MONAI converts all that is there.
    item = {"other": np.ones((1, 4, 4, 4), np.float32), "number": 3}
    check_lowered_alike(transform, item)
