"""Where the events of a run go besides its own folder: TensorBoard, W&B, MLflow, a file for Prometheus.

A sink receives what `events.jsonl` holds, event by event. `--log` names sinks, which `table` lists: `tensorboard`,
`wandb:online`, `mlflow:http://127.0.0.1:5000`. The libraries are imported when a run begins.
"""

from typing import TYPE_CHECKING

from voxelocity_observe.core.first_use import first_use

if TYPE_CHECKING:
    from voxelocity_observe.sinks.mlflow import MlflowSink
    from voxelocity_observe.sinks.openmetrics import OpenMetricsSink
    from voxelocity_observe.sinks.outlet import Outlets
    from voxelocity_observe.sinks.protocol import RunStart, Sink
    from voxelocity_observe.sinks.table import TRACKERS, choose_sinks
    from voxelocity_observe.sinks.tensorboard import TensorBoardSink
    from voxelocity_observe.sinks.wandb import WandbSink

__all__ = [
    "TRACKERS",
    "MlflowSink",
    "OpenMetricsSink",
    "Outlets",
    "RunStart",
    "Sink",
    "TensorBoardSink",
    "WandbSink",
    "choose_sinks",
]

__getattr__ = first_use(
    __name__,
    {
        "mlflow": ("MlflowSink",),
        "openmetrics": ("OpenMetricsSink",),
        "outlet": ("Outlets",),
        "protocol": ("RunStart", "Sink"),
        "table": ("TRACKERS", "choose_sinks"),
        "tensorboard": ("TensorBoardSink",),
        "wandb": ("WandbSink",),
    },
)
