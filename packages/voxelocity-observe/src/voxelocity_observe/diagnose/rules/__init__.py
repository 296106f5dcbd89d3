"""Facts to findings, one module a family; each rule is a pure function. `RULES` holds all of them, in order of code.

`rule` says what a rule is and what it returns, `loader_model` how batches are made and what would change that, `seen`
what rules read off the facts, `words` how they say it.
"""

from voxelocity_observe.diagnose.rules import (
    computing,
    device,
    files,
    keeping,
    loading,
    loop,
    machine,
    ranks,
    transform_rules,
    validation,
)
from voxelocity_observe.diagnose.rules.rule import Found, Pool, Rule, rule

_FAMILIES = (loading, transform_rules, keeping, files, device, computing, loop, validation, machine, ranks)

RULES: tuple[Rule, ...] = tuple(
    sorted(
        (found for family in _FAMILIES for found in vars(family).values() if isinstance(found, Rule)),
        key=lambda finding: finding.code,
    )
)

__all__ = ["RULES", "Found", "Pool", "Rule", "rule"]
