"""Defines a rule: a code, a title, the part of the time that it covers, and a function that finds it in the facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from voxelocity_observe.diagnose.accounting import watched_s
from voxelocity_observe.diagnose.facts import Facts
from voxelocity_observe.diagnose.result import Basis, Finding, Risk

Pool = Literal["data", "copy", "compute", "loop", "validation", "saving", "machine", "memory"]
"""The time that a finding can save; "memory" costs no time until it is used up. Two findings of one pool never save
more together than the pool holds."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a rule adds to its code and title; fields as in `Finding`. Empty lines of evidence are left out."""

    cause: str
    evidence: Sequence[str]
    change: str
    saves_s: float | None = None
    basis: Basis = "estimated"
    risk: Risk = "safe"
    where: str = ""
    is_cause: bool = True


Find = Callable[[Facts], Found | Sequence[Found] | None]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Looks for one thing in facts. A rule keeps no state and reads neither files nor the clock.

    Attributes:
        code: stable; its page is `findings/CODE.md`.
        title: the cause as a clause: a heading, and in lower case the end of a verdict.
        pool: the time that it can save.
        names_work: whether it names the slow work itself rather than a place that could hide it; such a cause ranks
            before one that saves somewhat more.
        is_upgrade: whether it would speed up any such program, and is no fault of this one; such a cause ranks behind
            one that saves a quarter as much.
        is_context: whether it describes what other programs do; such a cause ranks after all of the program's own.
        find: returns what was found, once or for several places.
    """

    code: str
    title: str
    pool: Pool
    names_work: bool
    is_context: bool
    is_upgrade: bool
    find: Find

    def __call__(self, facts: Facts) -> tuple[Finding, ...]:
        """The findings in these facts, none if the rule does not apply."""
        found = self.find(facts)
        each = () if found is None else (found,) if isinstance(found, Found) else tuple(found)
        of_s = watched_s(facts)
        return tuple(
            Finding(
                code=self.code,
                title=self.title,
                of_s=of_s,
                **{**vars(finding), "evidence": tuple(line for line in finding.evidence if line)},
            )
            for finding in each
        )


def rule(
    code: str,
    title: str,
    *,
    pool: Pool,
    names_work: bool = False,
    is_context: bool = False,
    is_upgrade: bool = False,
) -> Callable[[Find], Rule]:
    """Makes a rule from a function that maps facts to what it found."""

    def make(find: Find) -> Rule:
        return Rule(
            code=code,
            title=title,
            pool=pool,
            names_work=names_work,
            is_context=is_context,
            is_upgrade=is_upgrade,
            find=find,
        )

    return make
