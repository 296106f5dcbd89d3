"""Facts to findings, one module a family; each rule is a pure function. `RULES` holds all of them, in order of code."""

from voxelocity.diagnosis.rules import (
    calls,
    device,
    files,
    kernels,
    loading,
    loop,
    machine,
    precision,
    threads,
    transform_rules,
    validation,
)
from voxelocity.diagnosis.rules.rule import Found, Pool, Rule, rule

RULES: tuple[Rule, ...] = tuple(
    sorted(
        (
            *loading.RULES,
            *transform_rules.RULES,
            *files.RULES,
            *device.RULES,
            *precision.RULES,
            *kernels.RULES,
            *calls.RULES,
            *threads.RULES,
            *loop.RULES,
            *validation.RULES,
            *machine.RULES,
        ),
        key=lambda one: one.code,
    )
)

__all__ = ["RULES", "Found", "Pool", "Rule", "rule"]
