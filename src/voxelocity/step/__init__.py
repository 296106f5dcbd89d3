"""One training step: network, precision, loss, optimizer, schedule."""

from voxelocity.step.backend import BackendConfig, backend_as_found, set_backend
from voxelocity.step.compiled import check_compiler
from voxelocity.step.loss import LossConfig, build_loss
from voxelocity.step.memory import is_out_of_memory
from voxelocity.step.network import NetworkConfig, build_network
from voxelocity.step.optimizer import OptimizerConfig, build_optimizer
from voxelocity.step.precision import CompileMode, PrecisionConfig, autocast, precision_on
from voxelocity.step.schedule import ScheduleConfig, learning_rate_at
from voxelocity.step.training_step import TrainingStep

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
