"""Which axes are flipped, and which classes swap places when left and right do."""

from __future__ import annotations

from collections.abc import Sequence

from voxelocity.core.laterality import find_sides, swapped_classes
from voxelocity.planning.facts import Facts


def settle_flips(facts: Facts) -> None:
    """Left-right flips, with the classes of a pair swapped; none where a flip would teach a wrong side."""
    sides = find_sides(facts.data.class_names)
    pairs = [list(pair) for pair in sides.pairs]
    if pairs or "data.augment.swap_pairs" in facts.overrides:
        pairs = facts.settle(
            "data.augment.swap_pairs", pairs, f"{_numbered(facts, pairs)}: a left-right flip swaps their labels"
        )
        swapped_classes(facts.data.class_names, pairs)
    swapped = {name for pair in pairs for name in pair}
    unlike = [" and ".join(pair) for pair in sides.unlike if not swapped.issuperset(pair)]
    unswapped = [" and ".join(pair) for pair in sides.pairs if not swapped.issuperset(pair)]
    single = [name for name in sides.single if name not in swapped]
    flips, reason = [0.0, 0.0, 0.0], ""
    if single:
        reason = f"no flips: {_some(single)} is labeled on one side only, and a flip would make the other look like it"
    elif unlike:
        reason = f"no flips: the mirror image of one of {_some(unlike)} does not look like the other"
    elif unswapped:
        reason = f"no flips: swap_pairs leaves out {_some(unswapped)}, and a flip would give one the other's name"
    elif pairs and facts.settled["data"]["prepare"]["orientation"] == "keep":
        reason = "no flips: scans keep their orientation, so no axis is known to run from left to right in all of them"
    else:
        flips[0] = 0.5
        reason = "left and right are near mirror images; front and back, head and foot are not"
        if not pairs and len(facts.data.class_names) > 2:
            reason += "; no class name states a side, so no labels are swapped (data.augment.swap_pairs names pairs)"
    facts.settle("data.augment.flip_probability", flips, reason)


def _numbered(facts: Facts, pairs: Sequence[Sequence[str]]) -> str:
    """The pairs with their class indices, as "classes 3/4 LeftParotid/RightParotid are a pair"."""
    index_of = {name: index for index, name in enumerate(facts.data.class_names)}
    texts = [f"{index_of[one]}/{index_of[other]} {one}/{other}" for one, other in pairs]
    return f"classes {_some(texts)} are {'a pair' if len(texts) == 1 else 'pairs'}" if texts else "no classes are pairs"


def _some(texts: Sequence[str]) -> str:
    return ", ".join(texts[:3]) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")
