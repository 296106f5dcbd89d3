"""Facts to findings, one module a family; each rule is a pure function. `RULES` holds all of them, in order of code."""

from voxelocity.diagnosis.rules import (
    calls,
    device,
    files,
    kernels,
    loading,
    loop,
    machine,
    making_work,
    precision,
    threads,
    validation,
)
from voxelocity.diagnosis.rules.rule import Found, Pool, Rule, rule

RULES: tuple[Rule, ...] = tuple(
    sorted(
        (
            *loading.RULES,
            *making_work.RULES,
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
