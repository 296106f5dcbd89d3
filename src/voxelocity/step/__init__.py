"""One training step: network, precision, loss, optimiser, schedule."""

from voxelocity.step.loss import LossConfig, build_loss
from voxelocity.step.network import NetworkConfig, build_network
from voxelocity.step.optimizer import OptimizerConfig, build_optimizer
from voxelocity.step.precision import PrecisionConfig, autocast
from voxelocity.step.schedule import ScheduleConfig, learning_rate_at
from voxelocity.step.training_step import TrainingStep

__all__ = [
    "LossConfig",
    "NetworkConfig",
    "OptimizerConfig",
    "PrecisionConfig",
    "ScheduleConfig",
    "TrainingStep",
    "autocast",
    "build_loss",
    "build_network",
    "build_optimizer",
    "learning_rate_at",
]
