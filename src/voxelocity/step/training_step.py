"""The step itself: forward, loss, backward, optimiser, running average. It reads no tensor: the device never waits."""

from __future__ import annotations

from typing import Any

import torch

from voxelocity.core.batch import Batch
from voxelocity.observe import span
from voxelocity.step.compiled import compiled
from voxelocity.step.loss import Loss
from voxelocity.step.optimizer import OptimizerConfig, build_optimizer
from voxelocity.step.precision import PrecisionConfig, autocast


class TrainingStep:
    """A network in training, with everything that must be saved to go on exactly.

    Attributes:
        network: in training mode, on `device`.
        averaged: the network to validate and predict with: a running average, or `network` itself.
    """

    def __init__(
        self,
        network: torch.nn.Module,
        loss: Loss,
        *,
        optimizer: OptimizerConfig,
        precision: PrecisionConfig,
        device: torch.device,
    ) -> None:
        self.device = device
        self.network = network.to(device, memory_format=precision.memory_format)  # type: ignore[call-overload]
        # Beside the network and not in its place: states and averages must not depend on who makes its code.
        self._forward = compiled(self.network, precision.compile, device)
        self._loss = loss
        self._precision = precision
        self._config = optimizer
        self._optimizer = build_optimizer(optimizer, self.network.parameters())
        self._scaler = torch.amp.GradScaler(device.type, enabled=precision.compute == "float16")
        self._average = _running_average(self.network, optimizer.average_decay)

    @property
    def averaged(self) -> torch.nn.Module:
        return self.network if self._average is None else self._average.module

    def __call__(self, batch: Batch, learning_rate: float) -> torch.Tensor:
        """One step on `batch`, which lies on the device. Its parts are spans: copy (into the network's memory
        format), forward, loss, backward, optimizer, averaging.

        Returns:
            The loss as a scalar tensor on the device; nothing has waited for it.
        """
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        with span("copy", color="orange"):
            image = batch.image.to(memory_format=self._precision.memory_format)
        with autocast(self._precision, self.device):
            with span("forward", color="green"):
                logits = self._forward(image)
            with span("loss", color="lightgreen"):
                # DynUNet stacks deeper outputs on axis 1 when supervised deeply; plain ones give (b, k, x, y, z).
                loss = self._loss(logits, batch.label)
        with span("backward", color="blue"):
            self._optimizer.zero_grad(set_to_none=True)
            self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        with span("optimizer", color="purple"):
            self._scaler.unscale_(self._optimizer)
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), self._config.clip_norm)
            self._scaler.step(self._optimizer)
            self._scaler.update()
        if self._average is not None:
            with span("averaging", color="violet"):
                self._average.update_parameters(self.network)
        return loss.detach()

    def state(self) -> dict[str, Any]:
        """Tensors and plain values only, loadable with `weights_only=True`."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
            "average": None if self._average is None else self._average.state_dict(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on exactly from a saved `state`."""
        self.network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._scaler.load_state_dict(state["scaler"])
        if self._average is not None:
            self._average.load_state_dict(state["average"])


def _running_average(network: torch.nn.Module, decay: float) -> torch.optim.swa_utils.AveragedModel | None:
    if decay == 0.0:
        return None

    def average(averaged: Any, current: Any, num_averaged: Any) -> None:
        # Early on a plain mean over the steps so far: the first, random weights must not linger.
        weight = 1.0 - torch.clamp((1.0 + num_averaged) / (10.0 + num_averaged), max=decay)
        torch._foreach_lerp_(averaged, current, float(weight))

    return torch.optim.swa_utils.AveragedModel(network, multi_avg_fn=average, use_buffers=True)
