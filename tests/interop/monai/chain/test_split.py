import numpy as np
import pytest
from monai.transforms import Compose, EnsureTyped, Lambdad, OneOf, RandFlipd, ScaleIntensityd

from voxelocity.interop.monai.chain import ChainError, as_compose, split


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


def test_a_nested_chain_that_walks_lists_otherwise_stays_whole() -> None:
    parts = split(Compose([EnsureTyped("a"), Compose([ScaleIntensityd("a")], map_items=False)]))
    assert _names(parts.random) == ["Compose"]


def test_a_bare_function_and_a_random_container_end_the_part_that_is_cached() -> None:
    for boundary in (lambda item: item, OneOf([EnsureTyped("a"), ScaleIntensityd("a")])):
        parts = split(Compose([EnsureTyped("a"), boundary, ScaleIntensityd("a")]))
        assert len(parts.fixed) == 1
        assert parts.random[0] is boundary


def test_a_lambda_transform_is_deterministic() -> None:
    assert len(split(Compose([Lambdad("a", lambda x: x)])).fixed) == 1


@pytest.mark.parametrize("lazy", [True, None])
def test_a_lazy_chain_is_refused_with_the_cure(lazy: bool | None) -> None:
    with pytest.raises(ChainError, match=rf"lazy={lazy} cannot be split: .*Set lazy=False"):
        split(Compose([EnsureTyped("a")], lazy=lazy))


def test_a_chain_that_unpacks_items_is_refused() -> None:
    with pytest.raises(ChainError, match=r"unpack_items=True cannot be split: what one transform passes"):
        split(Compose([EnsureTyped("a")], unpack_items=True))


def test_what_is_no_transform_is_refused_by_name() -> None:
    with pytest.raises(ChainError, match=r"compile: 3 is a int, not a transform; give a monai.transforms.Compose"):
        as_compose([EnsureTyped("a"), 3])  # type: ignore[list-item]


def test_a_list_of_transforms_keeps_their_random_states() -> None:
    flip = RandFlipd("a").set_random_state(3)
    state = flip.R.get_state()[1].copy()
    assert as_compose([flip]).transforms == (flip,)
    assert np.array_equal(flip.R.get_state()[1], state)
