"""Kernel groups and operators of the profiled steps."""

from __future__ import annotations

from voxelocity.core.quantities import duration_text, share_text
from voxelocity.diagnosis.facts import Facts, ProfileFacts
from voxelocity.diagnosis.render.evidence.section import section
from voxelocity.report.document import Section, Table

_MAX_OPERATORS = 20


def profile_section(facts: Facts) -> Section | None:
    """What torch.profiler saw; kernels where there is a device."""
    profile = facts.profile
    if profile is None:
        return None
    tables = [_device_table(profile), _group_table(profile)] if profile.gpu_busy_ns else []
    if profile.operators:
        tables.append(_operator_table(profile))
    hint = f"Of {profile.num_steps} steps under torch.profiler, which slows them down; shares matter here, not seconds."
    return section("profile", "Kernels and operators", tables, hint=hint) if tables else None


def _device_table(profile: ProfileFacts) -> Table:
    whole = profile.wall_ns or 1
    rows = [
        ("Device busy", share_text(profile.gpu_busy_ns / whole)),
        ("Device idle while the host prepares its work", share_text(profile.launch_bound_ns / whole)),
        ("Kernel time on tensor cores", share_text(profile.tensor_core_share)),
    ]
    return Table(caption="The device", heads=("What", "Share"), rows=rows)


def _group_table(profile: ProfileFacts) -> Table:
    rows = [
        (name, f"{group.number:,}", duration_text(group.cpu_ns / 1e9), duration_text(group.gpu_ns / 1e9))
        for name, group in profile.groups.items()
    ]
    return Table(caption="Kernel groups", heads=("Group", "Number", "CPU time", "GPU time"), rows=rows)


def _operator_table(profile: ProfileFacts) -> Table:
    has_gpu = any(one.gpu_ns for one in profile.operators)
    costs = [one.gpu_ns if has_gpu else one.cpu_ns for one in profile.operators]
    whole = sum(costs) or 1
    rows = [
        (
            one.name,
            one.shape,
            f"{one.number:,}",
            duration_text(one.cpu_ns / 1e9),
            *([duration_text(one.gpu_ns / 1e9)] if has_gpu else []),
            share_text(cost / whole),
        )
        for one, cost in zip(profile.operators[:_MAX_OPERATORS], costs, strict=False)
    ]
    heads = ("Operator", "Shape", "Number", "CPU time", *(["GPU time"] if has_gpu else []), "Share")
    return Table(
        caption="Top operators, without what they call",
        heads=heads,
        rows=rows,
        text_columns=frozenset({1}),
        shares=[cost / whole for cost in costs[:_MAX_OPERATORS]],
    )
