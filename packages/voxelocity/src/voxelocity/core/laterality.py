"""Left and right in the names of classes: which two are a pair, and how a mirror image changes their indices.

Sides are found in English names and in the letters that name contours (L, R, lh, rh, lt, rt). The user lists pairs with
other names.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from voxelocity_observe.core.errors import ConfigError, did_you_mean

Pair = tuple[str, str]

# Only whole words count as a side without a partner: a lone L may be a lumbar level, a lobe or a length. Where other
# classes show that letters are sides, it is one too.
_WORDS = {"left": "right", "right": "left"}
_SHORT = {"l": "r", "r": "l", "lh": "rh", "rh": "lh", "lt": "rt", "rt": "lt"}
_PARTNERS = _WORDS | _SHORT
# "LeftParotid", "kidney_left", "Left Lung", "Eye_L", "ctx-lh-cuneus"; L1 stays one word: it is a vertebra.
_WORD = re.compile(r"[A-Z]+[0-9]+|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
# The two sides of these have different shapes, so the mirror image of one is not the other.
_UNLIKE = frozenset(
    ("heart", "cardiac", "atrium", "atria", "atrial", "ventricle", "ventricular", "auricle", "appendage", "liver",
     "hepatic")
)  # fmt: skip
_JOINED_SIDE = re.compile("^(left|right|l|r)")
# Of a name that begins with the letter of its side: shorter ones are abbreviations, such as LAD.
_LEAST_JOINED = 5
# The ventricles of the brain are mirror images, unlike those of the heart.
_LIKE = frozenset(("lateral", "lat", "brain", "cerebral", "horn"))


@dataclass(frozen=True, kw_only=True)
class Sides:
    """What the names of classes say about left and right.

    Attributes:
        pairs: mirror images of each other, each in the order of the classes.
        unlike: left and right of an organ whose two sides have different shapes, such as the chambers of a heart.
        single: names of one side whose other side is not among the classes, or is not clear.
    """

    pairs: tuple[Pair, ...]
    unlike: tuple[Pair, ...]
    single: tuple[str, ...]


def find_sides(class_names: Sequence[str]) -> Sides:
    """Pairs and single sides among these names, by their words; "Leftover" and "L1" have no side.

    A lone "Cochlea_L" is a single side if another structure of the set has both, such as "Lens_L" and "Lens_R".
    """
    by_key: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name in class_names:
        words = _words(name)
        sides = [position for position, word in enumerate(words) if word in _PARTNERS]
        if len(sides) == 1:
            by_key[_key(words, sides[0])].append(name)
    pairs: list[Pair] = []
    single: list[str] = []
    has_both = [names for names in by_key.values() if len({_side(name) for name in names}) == 2]
    counted = _PARTNERS if any(_side(names[0]) in _SHORT for names in has_both) else _WORDS
    for names in by_key.values():
        if len(names) == 2 and names in has_both:
            pairs.append((names[0], names[1]))
        else:
            single += [name for name in names if _side(name) in counted]
    with_side = set(chain(*by_key.values()))
    pairs += _joined_pairs([name for name in class_names if name not in with_side])
    order = {name: index for index, name in enumerate(class_names)}
    pairs.sort(key=lambda pair: order[pair[0]])
    return Sides(
        pairs=tuple(pair for pair in pairs if not _is_unlike(pair[0])),
        unlike=tuple(pair for pair in pairs if _is_unlike(pair[0])),
        single=tuple(sorted(single, key=order.__getitem__)),
    )


def swapped_classes(class_names: Sequence[str], pairs: Sequence[Pair]) -> tuple[int, ...]:
    """For each class index, the one that takes its place when left and right are exchanged; empty without pairs.

    Args:
        class_names: in order of class index.
        pairs: names of classes that swap places.

    Raises:
        ConfigError: a pair names an unknown class, a class twice, or the background.
    """
    if not pairs:
        return ()
    swapped = list(range(len(class_names)))
    seen: set[str] = set()
    for pair in pairs:
        for name in pair:
            if name not in class_names[1:]:
                hint = did_you_mean(name, class_names[1:]) or f"; the classes are {', '.join(class_names[1:])}"
                raise ConfigError(f"config: swap_pairs names {name!r}, which is not a class of this data set{hint}")
            if name in seen:
                raise ConfigError(f"config: swap_pairs names {name!r} twice; keep it in one pair of two classes")
            seen.add(name)
        one, other = (class_names.index(name) for name in pair)
        swapped[one], swapped[other] = other, one
    return tuple(swapped)


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]


def _key(words: Sequence[str], position: int) -> tuple[str, ...]:
    """The name without its side, but with the way the side is written."""
    return (*words[:position], "/".join(sorted((words[position], _PARTNERS[words[position]]))), *words[position + 1 :])


def _side(name: str) -> str:
    return next(word for word in _words(name) if word in _PARTNERS)


def _joined_pairs(names: Sequence[str]) -> list[Pair]:
    """Pairs whose side is part of a word, as in "leftkidney" and "lkidney": taken only if the other side exists too."""
    known = {name.lower(): name for name in names}
    pairs = []
    for low, name in known.items():
        has_one_word = low.count("left") == 1 and "right" not in low
        other = known.get(low.replace("left", "right")) if has_one_word else None
        if other is None and low.startswith("l") and len(low) >= _LEAST_JOINED:
            other = known.get(f"r{low[1:]}")
        if other is not None:
            pairs.append((name, other) if names.index(name) < names.index(other) else (other, name))
    return pairs


def _is_unlike(name: str) -> bool:
    words = set(_words(name))
    words |= {_JOINED_SIDE.sub("", word) for word in words}
    return bool(words & _UNLIKE) and not words & _LIKE
