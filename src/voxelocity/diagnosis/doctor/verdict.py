"""The first line: whether training can run here, on what, and how much there is to fix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from voxelocity.core.quantities import count_text
from voxelocity.diagnosis.doctor.check import Check
from voxelocity.diagnosis.doctor.seen import Driver, Seen


def verdict(seen: Seen, checks: Sequence[Check]) -> str:
    """One or two sentences."""
    stops = [check for check in checks if check.stops_training]
    if stops:
        first = stops[0]
        more = "" if len(stops) == 1 else f" And {count_text(len(stops) - 1, 'more thing')} must be fixed."
        return f"Training cannot run here: {first.section}, {first.name}: {first.found}.{more}"
    return f"{_where(seen)} {_to_mend(checks)}"


def _where(seen: Seen) -> str:
    cores = count_text(seen.processor.num_budget, "CPU core")
    if seen.torch.sees_cuda and seen.driver.gpus:
        hidden = len(seen.driver.gpus) > seen.torch.num_gpus
        shown = f" ({seen.torch.num_gpus} of these available)" if hidden else ""
        return f"Training runs on {_gpus_text(seen.driver)}{shown}, with {cores} to make batches."
    if seen.torch.sees_cuda:
        return f"Training runs on a GPU that its driver does not describe, with {cores} to make batches."
    if seen.driver.num_cards or seen.driver.gpus:
        return f"Training runs on {cores}, and not on the GPU of this machine."
    return f"Training runs on {cores}; there is no GPU."


def _gpus_text(driver: Driver) -> str:
    kinds = Counter(gpu.name or "GPU" for gpu in driver.gpus)
    return " and ".join(name if count == 1 else f"{count} x {name}" for name, count in kinds.items())


def _to_mend(checks: Sequence[Check]) -> str:
    problems = sum(check.level == "problem" for check in checks)
    warnings = sum(check.level == "warning" for check in checks)
    notes = sum(check.level == "note" for check in checks)
    counted = [(problems, "problem"), (warnings, "warning"), (notes, "note")]
    parts = [count_text(count, noun) for count, noun in counted if count]
    return f"To look at: {', '.join(parts)}." if parts else "Nothing to fix."
