"""A training step of ours in nnU-Net's loop: fused norm and loss, Muon, a running average, a schedule that follows.

Knows nnU-Net's loss by its attributes; imports nothing of nnU-Net.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from voxelocity.core.batch import Batch
from voxelocity.nnunet.targets import picked
from voxelocity.step import (
    OPTIMIZERS,
    BackendConfig,
    LossConfig,
    OptimizerConfig,
    PrecisionConfig,
    ScheduleConfig,
    TrainingStep,
    build_loss,
    learning_rate_at,
    precision_on,
    set_backend,
)
from voxelocity.step.fused import has_triton
from voxelocity.step.fused_norm import use_own_norms
from voxelocity_observe.core.clock import Clock, system_clock

# As `planning.rules` settles it for a run of known length; the average is that of the last 50 steps.
OPTIMIZER = OptimizerConfig(
    name="muon",
    learning_rate=OPTIMIZERS["muon"].planned_rate[0],
    momentum=0.95,
    weight_decay=2e-2,
    average_decay=0.98,
)
SCHEDULE = ScheduleConfig(decay="cosine")


class DeepLoss:
    """The loss of each scale of deep supervision against one label, weighted; or of the only one.

    The labels of coarser scales are picked from it, as nnU-Net's transform picks them.

    Args:
        loss: of logits (b, k, ...) and the label of their scale.
        weights: of the scales, the finest first; those of weight 0 are left out. None without deep supervision.
        takes_classes: whether the loss takes labels (b, ...) uint8; else it takes them as nnU-Net makes them, (b, 1,
            ...) or, of regions, (b, regions, ...).
    """

    def __init__(
        self,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        weights: Sequence[float] | None,
        *,
        takes_classes: bool,
    ) -> None:
        self._loss, self.takes_classes = loss, takes_classes
        self._weights = None if weights is None else [float(weight) for weight in weights]

    def label_of(self, target: Any) -> torch.Tensor:
        """The label of the finest scale, from nnU-Net's target of a batch."""
        finest: torch.Tensor = target[0] if isinstance(target, list) else target
        return finest[:, 0].to(torch.uint8) if self.takes_classes else finest

    def __call__(self, logits: Any, label: torch.Tensor) -> torch.Tensor:
        """The loss, a scalar, of logits as nnU-Net's network returns them."""
        if self._weights is None:
            return self._loss(logits, label)
        terms = [
            weight * self._loss(scale, picked(label, scale.shape[2:]))
            for scale, weight in zip(logits, self._weights, strict=True)
            if weight != 0.0
        ]
        return torch.stack(terms).sum()


def step_loss(theirs: Any, *, ignored: int | None) -> DeepLoss:
    """What a step minimizes: ours where nnU-Net's is Dice and cross-entropy of exclusive classes, else nnU-Net's own.

    The same value but for rounding.

    Args:
        theirs: nnU-Net's loss.
        ignored: the label of voxels that do not count.
    """
    weights = getattr(theirs, "weight_factors", None)
    single = theirs if weights is None else theirs.loss
    if not _is_dice_ce(single):
        # Its sums need more than half precision.
        return DeepLoss(lambda logits, label: single(logits.float(), label), weights, takes_classes=False)
    config = LossConfig(name="dice_ce", dice_over_batch=bool(single.dc.batch_dice), smooth=float(single.dc.smooth))
    own = build_loss(config, ignored=ignored)
    # nnU-Net's Dice term is minus the index, ours 1 minus it.
    return DeepLoss(lambda logits, label: own(logits, label) - 1.0, weights, takes_classes=True)


def _is_dice_ce(loss: Any) -> bool:
    if (type(loss).__name__, type(getattr(loss, "dc", None)).__name__) != (
        "DC_and_CE_loss",
        "MemoryEfficientSoftDiceLoss",
    ):
        return False
    dice, entropy = loss.dc, loss.ce
    return bool(
        loss.weight_ce == loss.weight_dice == 1
        and not dice.do_bg
        and not dice.ddp
        and dice.smooth > 0.0
        and type(entropy).__name__ == "RobustCrossEntropyLoss"
        and entropy.weight is None
        and entropy.label_smoothing == 0.0
    )


def precision_of(device: torch.device, *, is_flat: bool) -> PrecisionConfig:
    """How a step computes on this device: bfloat16 where that is quick, and then as one CUDA graph; else float16 or 32.

    Args:
        device: of the training.
        is_flat: whether the network is for planes, for which torch's norms remain.
    """
    if device.type not in ("cpu", "cuda"):
        return PrecisionConfig(compute="float32")
    is_cuda = device.type == "cuda"
    compute = precision_on(PrecisionConfig(compute="bfloat16"), device).compute
    return PrecisionConfig(
        compute="float16" if is_cuda and compute == "float32" else compute,
        channels_last=not is_flat and (has_triton() or not is_cuda),
        step_graph=is_cuda and compute == "bfloat16",
    )


class FastStep:
    """In the place of nnU-Net's optimizer and of its schedule, and all of the training step.

    Args:
        network: nnU-Net's, on the device. Its norms and sequences of modules become ours; its weights and their names
            stay.
        loss: what it minimizes.
        device: of the network.
        is_flat: whether it is for planes.
        num_steps: of the whole training, if no time ends it.
        budget_s: seconds that the training takes, of all sessions.
        clock: of the seconds.

    Attributes:
        param_groups: where nnU-Net reads the learning rate that it logs.
        num_steps: so far.
        precision: of the step.
    """

    def __init__(
        self,
        network: torch.nn.Module,
        loss: DeepLoss,
        *,
        device: torch.device,
        is_flat: bool,
        num_steps: int,
        budget_s: float = math.inf,
        clock: Clock = system_clock,
    ) -> None:
        use_own_norms(network, in_sequences=True)
        set_backend(BackendConfig(cudnn_benchmark=True), device)
        self.precision = precision_of(device, is_flat=is_flat)
        self._step = TrainingStep(network, loss, optimizer=OPTIMIZER, precision=self.precision, device=device)
        self._loss, self._all_steps, self._budget_s, self._clock = loss, num_steps, budget_s, clock
        self._last: torch.Tensor | None = None
        self._spent_s, self._begun_s = 0.0, math.nan
        self.num_steps = 0
        self.param_groups = [{"lr": 0.0}]
        self.step()

    @property
    def spent_s(self) -> float:
        """Seconds of training, of all sessions; none pass before `begin`."""
        return self._spent_s if math.isnan(self._begun_s) else self._spent_s + self._clock() - self._begun_s

    @property
    def remaining_s(self) -> float:
        """Seconds until the time ends the training; infinite if steps do."""
        return max(0.0, self._budget_s - self.spent_s)

    @property
    def why_no_graph(self) -> str:
        """Why steps are not replayed as a CUDA graph; "" if they are."""
        return self._step.why_no_graph

    def begin(self) -> None:
        """From now on, time counts as training."""
        self._begun_s = self._clock()

    def step(self, epoch: int | None = None) -> None:
        """nnU-Net's call of its schedule: shows the learning rate of the next step, which does not depend on it."""
        self.param_groups[0]["lr"] = learning_rate_at(self._progress(), peak=OPTIMIZER.learning_rate, config=SCHEDULE)

    def __call__(self, image: torch.Tensor, target: Any) -> torch.Tensor:
        """The loss of one step, a scalar on the device; once the time is spent, that of the last one, without a step.

        Args:
            image: (b, c, ...) on the device.
            target: as nnU-Net's loss takes it, with the finest label on the device.
        """
        if self._last is not None and self._progress() >= 1.0:
            return self._last
        self.step()
        label = self._loss.label_of(target)
        batch = Batch(image=image, label=label, draws=(), regions=(), step=self.num_steps)
        self._last = self._step(batch, self.param_groups[0]["lr"])
        self.num_steps += 1
        return self._last

    def averaged(self) -> torch.nn.Module:
        """The network with the running average of its weights, which is validated and stored."""
        return self._step.averaged()

    def release(self) -> None:
        """Frees the memory of recorded steps."""
        self._step.release_graphs()

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` continues from."""
        return {"step": self._step.state(), "num_steps": self.num_steps, "spent_s": self.spent_s}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a state; what was spent counts."""
        self._step.load_state(state["step"])
        self.num_steps, self._spent_s = state["num_steps"], state["spent_s"]
        self.step()

    def _progress(self) -> float:
        if math.isinf(self._budget_s):
            return self.num_steps / self._all_steps
        return min(1.0, self.spent_s / self._budget_s)
