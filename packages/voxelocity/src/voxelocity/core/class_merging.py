"""Several classes learned as one: how the user writes it, and what becomes of the classes of a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pydantic import Field

from voxelocity.core.cases import Cases, MergedClasses
from voxelocity.core.config import Config
from voxelocity_observe.core.errors import ConfigError, did_you_mean
from voxelocity_observe.core.plain import shortened
from voxelocity_observe.core.quantities import listed

MERGED = "merged"
"""The column of `predictions.csv` with the groups of the model as JSON; missing if it merges no classes."""
Groups = Mapping[str, Sequence[int | str]]
"""Names or values of classes by the name of their group, as `ClassesConfig.merge` has them."""
_LISTED = 8


class ClassesConfig(Config):
    """Which classes are learned."""

    merge: dict[str, tuple[int | str, ...]] = Field(default_factory=dict)
    """Classes to learn as one, by the name of the whole: {"lung": ["lung_left", "lung_right", 12]}. Members are named,
    or are values of the label files. A group with the name of a class takes that one in: what is merged into
    "background" is not learned. Label files stay as they are; predictions hold the lowest value of each group."""


def merge_cases(cases: Cases, groups: Groups) -> Cases:
    """The same cases with these classes merged; unchanged without groups.

    Args:
        cases: with their classes declared.
        groups: of classes.

    Raises:
        ConfigError: classes overlap, or as `merge_labels`.
    """
    if not groups:
        return cases
    if cases.regions:
        raise ConfigError(
            f"plan: classes.merge cannot merge the overlapping classes of {cases.root} ({listed([*cases.regions])}): "
            'each of them is a list of values already; change these lists in "labels" of its dataset.json'
        )
    labels, merged = merge_labels(cases.labels, groups, where="plan: classes.merge")
    return replace(cases, labels=labels, merged=merged)


def merge_labels(labels: Mapping[int, str], groups: Groups, *, where: str) -> tuple[dict[int, str], MergedClasses]:
    """Class names by value with the groups in place of their members, and the members of each.

    Args:
        labels: class names by value.
        groups: of classes.
        where: start of the error text.

    Raises:
        ConfigError: a member is not a class (the nearest name is given) or in two groups, a group is empty or has a
            name that cannot be used, or a single class is left.
    """
    values = {name: value for value, name in labels.items()}
    group_of: dict[int, str] = {}
    for name, members in groups.items():
        if not name.strip() or name == "ignore" or not members:
            problem = "is empty" if name.strip() and name != "ignore" else "has a name that no class can have"
            raise ConfigError(f"{where}: the group {shortened(name)} {problem}; name it and list its classes")
        own = [values[name]] if name in values else []
        for value in [*own, *(_value_of(member, labels, values, where) for member in members)]:
            if group_of.setdefault(value, name) != name:
                raise ConfigError(
                    f"{where}: {shortened(labels[value])} is in the groups {shortened(group_of[value])} and "
                    f"{shortened(name)}; a voxel has one class, so leave it out of one of them"
                )
    merged: dict[int, dict[int, str]] = {}
    for name in groups:
        inside = sorted(value for value, group in group_of.items() if group == name)
        merged[inside[0]] = {value: labels[value] for value in inside}
    kept = {value: name for value, name in labels.items() if value not in group_of}
    found = kept | {value: group_of[value] for value in merged}
    if len(found) < 2:
        raise ConfigError(
            f"{where}: all classes are merged into {shortened(found[0])}; leave at least one class to train"
        )
    return dict(sorted(found.items())), merged


def groups_of(labels: Mapping[int, str], merged: MergedClasses) -> dict[str, tuple[int, ...]]:
    """The groups that `merge_labels` made these classes of, as values."""
    return {labels[value]: tuple(members) for value, members in merged.items()}


def _value_of(member: int | str, labels: Mapping[int, str], values: Mapping[str, int], where: str) -> int:
    if isinstance(member, str) and member in values:
        return values[member]
    value = int(member) if isinstance(member, int) or (member.isascii() and member.isdecimal()) else None
    if value is not None and value in labels:
        return value
    near = did_you_mean(str(member), values)
    have = "" if near else f"; there are {listed([*values], _LISTED)}"
    raise ConfigError(f"{where}: {shortened(member)} is not a class{near}{have}")
