"""The choices of a plan, grouped by what another value would change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from voxelocity.core.records import Choice

HOW_TO_CHANGE = (
    "Change a choice with --set KEY=VALUE, or in a file that --config names; --set KEY=auto gives it back to its rule. "
    "For seed and train.time_budget_s there are also --seed and --time-budget."
)


@dataclass(frozen=True, kw_only=True)
class ChoiceGroup:
    """Choices whose change means the same.

    Attributes:
        title: what another value would change.
        hint: what that means.
        choices: in the order of the plan, at least one.
    """

    title: str
    hint: str
    choices: tuple[Choice, ...]


def choice_groups(choices: Sequence[Choice]) -> list[ChoiceGroup]:
    """Those that change the results first, those that change nothing but speed and memory last; no empty group."""
    results = tuple(choice for choice in choices if choice.changes_results)
    roundings = tuple(choice for choice in choices if choice.changes_roundings and not choice.changes_results)
    safe = tuple(choice for choice in choices if not choice.changes_results and not choice.changes_roundings)
    groups = [
        ChoiceGroup(title="Changes the results", hint="another value trains or predicts differently", choices=results),
        ChoiceGroup(
            title="Changes only rounding",
            hint="the same sums in another order, as on another machine; chosen for speed",
            choices=roundings,
        ),
        ChoiceGroup(title="Changes only speed and memory", hint="results stay the same", choices=safe),
    ]
    return [group for group in groups if group.choices]
