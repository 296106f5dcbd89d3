"""One training step: network, precision, loss, optimizer, schedule."""

from voxelocity.step.loss import LossConfig, build_loss
from voxelocity.step.network import NetworkConfig, build_network
from voxelocity.step.optimizer import OptimizerConfig, ScheduleConfig, build_optimizer, learning_rate_at
from voxelocity.step.precision import (
    BackendConfig,
    CompileMode,
    PrecisionConfig,
    autocast,
    backend_as_found,
    check_compiler,
    precision_on,
    set_backend,
)
from voxelocity.step.training_step import TrainingStep, is_out_of_memory

__all__ = [
    "BackendConfig",
    "CompileMode",
    "LossConfig",
    "NetworkConfig",
    "OptimizerConfig",
    "PrecisionConfig",
    "ScheduleConfig",
    "TrainingStep",
    "autocast",
    "backend_as_found",
    "build_loss",
    "build_network",
    "build_optimizer",
    "check_compiler",
    "is_out_of_memory",
    "learning_rate_at",
    "precision_on",
    "set_backend",
]
