"""What `Fast` in a trainer's name adds: a step of ours, and a training that ends with a clock. It changes results."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from voxelocity.nnunet.fast_step import OPTIMIZER, FastStep, step_loss
from voxelocity_observe.core.clock import Clock, system_clock
from voxelocity_observe.core.errors import ConfigError, InputError
from voxelocity_observe.core.quantities import duration_text, parse_duration_s

VARIABLE = "VOXELOCITY_TIME_BUDGET"
"""How long a training takes, such as 2h; without it, nnU-Net's epochs count."""
# nnU-Net validates, draws and logs after each epoch: with a time, epochs are few and not short.
_MOST_EPOCHS, _LEAST_EPOCH_S = 50, 20.0
_VALIDATION_SHARE = 0.1
# Of the first epoch, which shows how long they take.
_FIRST_LENGTHS = (10, 2)


class ClockedEpochs:
    """How long each epoch is, so that the last one ends with the time: planned by how long the one before it took.

    Args:
        budget_s: of the training.
        most_epochs: nnU-Net's.
        most_validation: iterations of a validation, nnU-Net's.
        clock: of the seconds.

    Attributes:
        num_epochs: that there are.
    """

    def __init__(self, budget_s: float, *, most_epochs: int, most_validation: int, clock: Clock = system_clock) -> None:
        self.num_epochs = max(1, min(most_epochs, _MOST_EPOCHS, int(budget_s / _LEAST_EPOCH_S)))
        self._most_validation, self._clock = most_validation, clock
        self._lengths = _FIRST_LENGTHS
        self._train_s = self._validation_s = math.nan
        self._marked_s = clock()

    def begin(self, epoch: int, remaining_s: float) -> tuple[int, int]:
        """Iterations of training and of validation in the epoch that begins now."""
        between_s = self._mark()
        if not math.isnan(self._train_s):
            share_s = max(0.0, remaining_s / max(1, self.num_epochs - epoch) - between_s)
            validation = int(share_s * _VALIDATION_SHARE / self._validation_s)
            validation = max(1, min(self._most_validation, validation))
            self._lengths = max(1, int((share_s - validation * self._validation_s) / self._train_s)), validation
        return self._lengths

    def end_training(self) -> None:
        """The epoch's training iterations are done."""
        self._train_s = max(1e-6, self._mark() / self._lengths[0])

    def end_validation(self) -> None:
        """And those of its validation."""
        self._validation_s = max(1e-6, self._mark() / self._lengths[1])

    def _mark(self) -> float:
        """Seconds since the last call."""
        before, self._marked_s = self._marked_s, self._clock()
        return self._marked_s - before


def time_budget_s() -> float:
    """What the variable asks for; infinite without it.

    Raises:
        ConfigError: it is not a duration.
    """
    text = os.environ.get(VARIABLE, "").strip()
    try:
        return parse_duration_s(text) if text else math.inf
    except ConfigError as error:
        raise ConfigError(f"nnunet: {VARIABLE} is not a duration: {error}") from None


class VoxelocityFast:
    """Comes before one of nnU-Net's trainers among the bases of a class: our step in its loop.

    Plans, network, batches, validation, logs and export stay nnU-Net's. `network_weights` of its checkpoints is the
    running average, and `optimizer_state` what the step needs to continue.
    """

    def initialize(self: Any) -> None:
        """As nnU-Net; with a time, epochs follow it."""
        if self.is_ddp:
            raise InputError(
                f"nnunet: {type(self).__name__} trains on one GPU, and -num_gpus requests several; use "
                "nnUNetTrainerVoxelocity for that"
            )
        self._budget_s, self._epochs, self._fast = time_budget_s(), None, None
        if math.isfinite(self._budget_s):
            self._epochs = ClockedEpochs(
                self._budget_s, most_epochs=self.num_epochs, most_validation=self.num_val_iterations_per_epoch
            )
            self.num_epochs = self._epochs.num_epochs
            self.save_every = max(1, self.num_epochs // 25)
        super().initialize()  # type: ignore[misc]

    def configure_optimizers(self: Any, *_stage: str) -> tuple[FastStep, FastStep]:
        """Our step, for the optimizer and for its schedule; the same one if a trainer asks again, stage by stage."""
        if self._fast is not None:
            return self._fast, self._fast
        loss = step_loss(self._build_loss(), ignored=self.label_manager.ignore_label)
        self._fast = FastStep(
            self.network,
            loss,
            device=self.device,
            is_flat=len(self.configuration_manager.patch_size) == 2,
            num_steps=self.num_epochs * self.num_iterations_per_epoch,
            budget_s=self._budget_s,
        )
        until = f"{self.num_epochs} epochs" if self._epochs is None else duration_text(self._budget_s)
        self.print_to_log_file(
            f"Voxelocity trains for {until}: {OPTIMIZER.name}, {self._fast.precision.compute}, "
            f"{'our loss' if loss.takes_classes else 'loss of nnU-Net'}, running average of the weights"
        )
        bases = type(self).__mro__[type(self).__mro__.index(VoxelocityFast) + 1 :]
        steps = [base.__name__ for base in bases if "train_step" in vars(base)]
        if steps and steps[0] != "nnUNetTrainer":
            self.print_to_log_file(f"WARNING: the train_step of {steps[0]} is not called, as our step takes its place")
        return self._fast, self._fast

    def _do_i_compile(self) -> bool:
        """Never: our kernels and the graph of the step take its place."""
        return False

    def on_train_start(self: Any) -> None:
        """From here on, time counts."""
        super().on_train_start()  # type: ignore[misc]
        self._fast.begin()

    def on_train_epoch_start(self: Any) -> None:
        """With a time, says how long the epoch is."""
        super().on_train_epoch_start()  # type: ignore[misc]
        if self._epochs is not None:
            lengths = self._epochs.begin(self.current_epoch, self._fast.remaining_s)
            self.num_iterations_per_epoch, self.num_val_iterations_per_epoch = lengths
            self.print_to_log_file(
                f"{lengths[0]} iterations, {lengths[1]} of validation; {duration_text(self._fast.spent_s)} of "
                f"{duration_text(self._budget_s)} are spent"
            )

    def train_step(self: Any, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        """One step; its loss stays on the device until the end of the epoch."""
        image, target = batch["data"].to(self.device, non_blocking=True), batch["target"]
        finest = target[0] if isinstance(target, list) else target
        return {"loss": self._fast(image, finest.to(self.device, non_blocking=True))}

    def on_train_epoch_end(self: Any, train_outputs: list[dict[str, torch.Tensor]]) -> None:
        """Reads the losses of the epoch at once."""
        losses: Any = torch.stack([output["loss"] for output in train_outputs]).float().cpu().numpy()
        super().on_train_epoch_end([{"loss": np.asarray(loss)} for loss in losses])  # type: ignore[misc]
        if self._epochs is not None:
            self._epochs.end_training()
        if self.device.type == "cuda" and self.current_epoch == 0 and self._fast.why_no_graph:
            self.print_to_log_file(f"Steps are not replayed as a CUDA graph: {self._fast.why_no_graph}")

    def on_validation_epoch_start(self: Any) -> None:
        """The average is validated."""
        self._trained, self.network = self.network, self._fast.averaged()
        super().on_validation_epoch_start()  # type: ignore[misc]

    def on_validation_epoch_end(self: Any, val_outputs: list[dict[str, Any]]) -> None:
        """And the network trains on."""
        super().on_validation_epoch_end(val_outputs)  # type: ignore[misc]
        self.network = self._trained
        if self._epochs is not None:
            self._epochs.end_validation()

    def save_checkpoint(self: Any, filename: str) -> None:
        """With the average as the network's weights."""
        with self._with_average():
            super().save_checkpoint(filename)  # type: ignore[misc]

    def perform_actual_validation(self: Any, save_probabilities: bool = False) -> None:
        """Of the average."""
        self._fast.release()
        with self._with_average():
            super().perform_actual_validation(save_probabilities)  # type: ignore[misc]

    @contextlib.contextmanager
    def _with_average(self: Any) -> Iterator[None]:
        trained, self.network = self.network, self._fast.averaged()
        try:
            yield
        finally:
            self.network = trained
