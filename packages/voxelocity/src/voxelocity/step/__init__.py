"""One training step: network, precision, loss, optimizer, schedule.

- `training_step`: forward, loss, backward, optimizer, average. `graph`: the whole of it as one CUDA graph.
- `network` with `network_config`: networks by name; `dynunet` and `unet` are ours.
- `loss`: losses by name. `optimizer`, `own_optimizers`: learning rate, optimizers by name, Muon and NovoGrad.
- `precision` with `precision_config`: number formats, memory format, switches.
- `fused`: which kernels may be used; `fused_norm` and `triton_norm`, `fused_loss` and `triton_loss`; `triton_math`
  is what kernels share; `ahead` compiles.
- `dropout`: its numbers, by seed and step. `full_memory`: what is said when a step does not fit.
"""

from typing import TYPE_CHECKING

from voxelocity.core.first_use import first_use

if TYPE_CHECKING:
    from voxelocity.step.loss import LossConfig, build_loss
    from voxelocity.step.network import build_network
    from voxelocity.step.network_config import NetworkConfig
    from voxelocity.step.optimizer import (
        OptimizerConfig,
        RunningAverage,
        ScheduleConfig,
        build_optimizer,
        learning_rate_at,
    )
    from voxelocity.step.precision import (
        autocast,
        backend_as_found,
        check_compiler,
        set_backend,
    )
    from voxelocity.step.precision_config import BackendConfig, PrecisionConfig, image_format, precision_on
    from voxelocity.step.training_step import TrainingStep

__all__ = [
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
    "image_format",
    "learning_rate_at",
    "precision_on",
    "set_backend",
]

__getattr__ = first_use(
    __name__,
    {
        "loss": ("LossConfig", "build_loss"),
        "network": ("build_network",),
        "network_config": ("NetworkConfig",),
        "optimizer": ("OptimizerConfig", "RunningAverage", "ScheduleConfig", "build_optimizer", "learning_rate_at"),
        "precision": ("autocast", "backend_as_found", "check_compiler", "set_backend"),
        "precision_config": ("BackendConfig", "PrecisionConfig", "image_format", "precision_on"),
        "training_step": ("TrainingStep",),
    },
)
