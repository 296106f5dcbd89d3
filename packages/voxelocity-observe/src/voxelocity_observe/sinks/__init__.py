"""Where the events of a run go besides its own folder: TensorBoard, W&B, MLflow, a file for Prometheus.

A sink receives what `events.jsonl` holds, event by event. `--log` names sinks: `tensorboard`, `wandb:online`,
`mlflow:http://127.0.0.1:5000`. The libraries are imported when a run begins.
"""

from collections.abc import Callable, Sequence

from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.sinks.mlflow import MlflowSink
from voxelocity_observe.sinks.openmetrics import OpenMetricsSink
from voxelocity_observe.sinks.outlet import Outlets
from voxelocity_observe.sinks.protocol import RunStart, Sink
from voxelocity_observe.sinks.tensorboard import TensorBoardSink
from voxelocity_observe.sinks.wandb import WandbSink

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


def choose_sinks(texts: Sequence[str]) -> list[Sink]:
    """A sink for each `NAME` or `NAME:PLACE`; imports none of their packages.

    The place is a folder for tensorboard, "online" or "offline" for wandb, a tracking URI for mlflow, and a file for
    openmetrics.

    Raises:
        ConfigError: a name is unknown or given twice, a place makes no sense, or a package is not installed.
    """
    sinks = [_sink(text) for text in texts]
    names = [sink.name for sink in sinks]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"sinks: --log {name} is given {names.count(name)} times; give it once")
    return sinks


def _sink(text: str) -> Sink:
    name, colon, place = text.partition(":")
    if name not in _MAKERS:
        raise ConfigError(f"sinks: --log {text!r} is not known; choose {', '.join(SINK_NAMES)}")
    if colon and not place:
        raise ConfigError(f"sinks: --log {text!r} names no place after the colon; add one, or write {name} alone")
    return _MAKERS[name](place)


def _wandb(place: str) -> Sink:
    if place not in ("", "online", "offline"):
        raise ConfigError(f"sinks: --log wandb:{place} is not known; write wandb:online, or wandb for a record on disk")
    return WandbSink(is_online=place == "online")


_MAKERS: dict[str, Callable[[str], Sink]] = {
    "tensorboard": lambda place: TensorBoardSink(place or None),
    "wandb": _wandb,
    "mlflow": lambda place: MlflowSink(place or None),
    "openmetrics": lambda place: OpenMetricsSink(place or None),
}
SINK_NAMES = tuple(_MAKERS)
