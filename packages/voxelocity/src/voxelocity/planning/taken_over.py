"""What a plan takes over in place of its rules' choices: from other runs, a model to start from, or nnU-Net's plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from voxelocity.core.config import flatten
from voxelocity.core.requests.plan import PlanRequest
from voxelocity.planning.config import Plan
from voxelocity.planning.facts import Start
from voxelocity.planning.patch_rule import MEMORY_KEYS
from voxelocity.planning.precision_rule import MEASURED_KEYS
from voxelocity.planning.start_rule import start_keys


@dataclass(frozen=True, kw_only=True)
class SharedKeys:
    """Keys that one run takes over from another.

    Attributes:
        values: by dotted key.
        reason: why, as a choice of the plan has it.
    """

    values: Mapping[str, Any]
    reason: str

    @classmethod
    def of_folds(cls, plan: Plan) -> SharedKeys:
        """What the folds of a cross-validation must share so that their networks can be averaged window by window.

        Rules see the statistics of all cases. So plans of folds differ only in what depends on the number of training
        cases (steps, cache), and in what was measured or depends on the memory that is free at that moment: the latter
        is shared.
        """
        return cls(
            values=_values_of_its_machine(plan), reason="as in the other folds, so that the networks can be averaged"
        )


def keys_taken_over(
    request: PlanRequest, *, num_channels: int, start: Start | None, shared: SharedKeys | None, saved_plan: Plan | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """The keys that win over rules, and why, for those that have a reason of their own. Later sources win.

    Args:
        request: names nnU-Net's plans.
        num_channels: of the cases.
        start: the model that the run starts from.
        shared: keys of another run.
        saved_plan: of the unfinished run that is continued.

    Raises:
        InputError: nnU-Net's plans cannot be used.
    """
    kept, reasons = start_keys(start)
    if shared is not None:
        kept |= shared.values
        reasons = {key: why for key, why in reasons.items() if key not in shared.values}
    if request.plans is not None:
        # Readers of foreign networks, which few plans need.
        from voxelocity.planning.plans_file import plans_keys

        found, why = plans_keys(request.plans, num_channels=num_channels)
        kept, reasons = kept | found, reasons | why
    if saved_plan is not None:
        kept |= _values_of_its_machine(saved_plan)
    return kept, reasons


def _values_of_its_machine(saved_plan: Plan) -> dict[str, Any]:
    """What the run measured, and what it chose by the memory that was free at that moment."""
    values = flatten(Plan, saved_plan.to_plain())
    return {key: values[key] for key in (*MEASURED_KEYS, *MEMORY_KEYS)}
