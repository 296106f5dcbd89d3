"""What is said of a step that was not finite: the failed batch once more, for the layer that overflowed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from voxelocity.core.batch import Batch
from voxelocity.parallel import World
from voxelocity.step import TrainingStep, first_overflow, overflow_advice
from voxelocity_observe.core.errors import NonFiniteLossError, VoxelocityError


def explained(
    error: NonFiniteLossError,
    training: TrainingStep,
    make_batch: Callable[[int], Batch],
    kept: Mapping[str, Any] | None,
    *,
    world: World,
) -> NonFiniteLossError:
    """The error, which also names the first layer that overflowed, if one pass of its batch finds one.

    The pass uses the weights as they are, as float16 leaves out a step that overflows; if these are broken too, those
    of the last checkpoint. Called by all ranks.

    Args:
        error: with the step.
        training: whose step it was; usable for nothing else from now on.
        make_batch: the batch of this rank at a step, on the device.
        kept: the last good checkpoint; None if there is none.
        world: the ranks.
    """
    found = None
    if training.is_plain:
        is_usable = training.is_finite()
        if not is_usable and kept is not None:
            training.load_state(kept["training"])
            is_usable = True
        if is_usable:
            training.set_training_mode()
            try:
                found = first_overflow(training.network, make_batch(error.step).image, training.precision)
            except (VoxelocityError, torch.OutOfMemoryError):
                # What failed first is what the user must know.
                found = None
        found = next((of_rank for of_rank in world.gather(found) if of_rank is not None), None)
    return NonFiniteLossError(
        f"{error}{overflow_advice(found, training.precision)}", case_ids=error.case_ids, step=error.step
    )
