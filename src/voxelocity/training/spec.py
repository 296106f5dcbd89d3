"""What the network of a plan expects and predicts, as stored with the model on disk."""

from __future__ import annotations

from voxelocity.infer import ModelSpec
from voxelocity.planning import Planned


def model_spec(planned: Planned) -> ModelSpec:
    """The description of the model that a run with this plan trains."""
    plan, cases = planned.plan, planned.cases
    return ModelSpec(
        network=plan.network,
        channels=cases.channels,
        labels=dict(cases.labels),
        prepare=plan.data.prepare,
        window=plan.window,
        # Windows are predicted without compilation, which would have to be repeated for each batch shape.
        precision=plan.precision.model_copy(update={"compile": "none"}),
        trained_on=planned.fingerprint.trained_on(),
    )
