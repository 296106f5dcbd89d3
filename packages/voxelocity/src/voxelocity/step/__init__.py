"""One training step: network, precision, loss, optimizer, schedule.

- `training_step`: forward, loss, backward, optimizer, average. `graph`: the whole of it as one CUDA graph.
- `loss_table`, `optimizer_table`, `network_table`: what a plan may name, one entry each, with its settings.
- `network` with `network_config`: a network built; `dynunet` and `unet` are ours, `dints` is MONAI's, and
  `foreign_networks` (`nnunet_network`) are those that other toolkits describe. `frozen`: weights held for a while.
- `loss`: a loss built. `optimizer`, `own_optimizers`: learning rate, state of an optimizer, Muon and NovoGrad.
- `precision` with `precision_config`: number formats, memory format, switches.
- `fused`: which kernels may be used; `fused_norm` and `triton_norm`, `fused_loss` and `triton_loss`; `triton_math`
  is what kernels share; `ahead` compiles. `native_norm` and `native_loss`: the same on a CPU, in C.
- `overflow`: the layer that broke a step, and layers that stay in float32. `cpu_convolutions`: those that must.
- `dropout`: its numbers, by seed and step. `full_memory`: what is said when a step does not fit.
"""

from typing import TYPE_CHECKING

from voxelocity_observe.core.first_use import first_use

if TYPE_CHECKING:
    from voxelocity.step.cpu_convolutions import guard_gradients
    from voxelocity.step.loss import build_loss
    from voxelocity.step.loss_table import LOSSES, LossConfig
    from voxelocity.step.network import build_network
    from voxelocity.step.network_config import NetworkConfig
    from voxelocity.step.network_table import NETWORKS
    from voxelocity.step.optimizer import (
        RunningAverage,
        ScheduleConfig,
        build_optimizer,
        learning_rate_at,
    )
    from voxelocity.step.optimizer_table import OPTIMIZERS, OptimizerConfig
    from voxelocity.step.overflow import first_overflow, keep_float32, overflow_advice
    from voxelocity.step.precision import (
        autocast,
        backend_as_found,
        check_compiler,
        set_backend,
    )
    from voxelocity.step.precision_config import BackendConfig, PrecisionConfig, image_format, precision_on
    from voxelocity.step.training_step import TrainingStep

__all__ = [
    "LOSSES",
    "NETWORKS",
    "OPTIMIZERS",
    "BackendConfig",
    "LossConfig",
    "NetworkConfig",
    "OptimizerConfig",
    "PrecisionConfig",
    "RunningAverage",
    "ScheduleConfig",
    "TrainingStep",
    "autocast",
    "backend_as_found",
    "build_loss",
    "build_network",
    "build_optimizer",
    "check_compiler",
    "first_overflow",
    "guard_gradients",
    "image_format",
    "keep_float32",
    "learning_rate_at",
    "overflow_advice",
    "precision_on",
    "set_backend",
]

__getattr__ = first_use(
    __name__,
    {
        "cpu_convolutions": ("guard_gradients",),
        "loss": ("build_loss",),
        "loss_table": ("LOSSES", "LossConfig"),
        "network": ("build_network",),
        "network_config": ("NetworkConfig",),
        "network_table": ("NETWORKS",),
        "optimizer": ("RunningAverage", "ScheduleConfig", "build_optimizer", "learning_rate_at"),
        "optimizer_table": ("OPTIMIZERS", "OptimizerConfig"),
        "overflow": ("first_overflow", "keep_float32", "overflow_advice"),
        "precision": ("autocast", "backend_as_found", "check_compiler", "set_backend"),
        "precision_config": ("BackendConfig", "PrecisionConfig", "image_format", "precision_on"),
        "training_step": ("TrainingStep",),
    },
)
