"""Where the events of a run go besides its own folder: TensorBoard, W&B, MLflow, a file for Prometheus.

A sink receives what `events.jsonl` holds, event by event. The libraries are imported when a run begins.
"""

from voxelocity.observe.sinks.choice import SINK_NAMES, choose_sinks
from voxelocity.observe.sinks.mlflow import MlflowSink
from voxelocity.observe.sinks.openmetrics import OpenMetricsSink
from voxelocity.observe.sinks.outlet import Outlets
from voxelocity.observe.sinks.protocol import RunStart, Sink
from voxelocity.observe.sinks.tensorboard import TensorBoardSink
from voxelocity.observe.sinks.wandb import WandbSink

__all__ = [
    "SINK_NAMES",
    "MlflowSink",
    "OpenMetricsSink",
    "Outlets",
    "RunStart",
    "Sink",
    "TensorBoardSink",
    "WandbSink",
    "choose_sinks",
]
