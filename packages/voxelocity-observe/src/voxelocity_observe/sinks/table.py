"""The trackers that `--log` can name. Importing it imports none of them, nor their sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from voxelocity_observe.core.errors import ConfigError

if TYPE_CHECKING:
    from voxelocity_observe.sinks.protocol import Sink


@dataclass(frozen=True, kw_only=True)
class Tracker:
    """What `--log` can name.

    Attributes:
        name: as `--log` has it, and of the extra that installs its package.
        title: as its makers write it.
        make: its sink, for the text after the colon of `--log NAME:PLACE`, "" without one.
        package: module that must be installed; "" if none.
        folders: patterns below the run's `tracking` of folders that hold files which it changes when a run resumes.
    """

    name: str
    title: str
    make: Callable[[str], Sink]
    package: str = ""
    folders: tuple[str, ...] = ()


def _tensorboard(place: str) -> Sink:
    from voxelocity_observe.sinks.tensorboard import TensorBoardSink

    return TensorBoardSink(folder=place or None)


def _wandb(place: str) -> Sink:
    from voxelocity_observe.sinks.wandb import WandbSink

    if place not in ("", "online", "offline"):
        raise ConfigError(f"sinks: --log wandb:{place} is not known; write wandb:online, or wandb for a record on disk")
    return WandbSink(is_online=place == "online")


def _mlflow(place: str) -> Sink:
    from voxelocity_observe.sinks.mlflow import MlflowSink

    return MlflowSink(tracking_uri=place or None)


def _openmetrics(place: str) -> Sink:
    from voxelocity_observe.sinks.openmetrics import OpenMetricsSink

    return OpenMetricsSink(path=place or None)


TRACKERS: Mapping[str, Tracker] = {
    tracker.name: tracker
    for tracker in (
        Tracker(
            name="tensorboard",
            title="TensorBoard",
            make=_tensorboard,
            package="tensorboard",
            folders=("tensorboard/*",),
        ),
        Tracker(
            name="wandb",
            title="Weights & Biases",
            make=_wandb,
            package="wandb",
            folders=("wandb/offline-run-*",),
        ),
        Tracker(name="mlflow", title="MLflow", make=_mlflow, package="mlflow", folders=("mlflow/*",)),
        Tracker(name="openmetrics", title="Prometheus", make=_openmetrics),
    )
}
"""By name."""


def choose_sinks(texts: Sequence[str]) -> list[Sink]:
    """A sink for each `NAME` or `NAME:PLACE`; imports none of their packages. docs/tracking.md lists the places.

    Raises:
        ConfigError: a name is unknown or given twice, a place makes no sense, or a package is not installed.
    """
    sinks = [_make_sink(text) for text in texts]
    names = [sink.name for sink in sinks]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"sinks: --log {name} is given {names.count(name)} times; give it once")
    return sinks


def _make_sink(text: str) -> Sink:
    name, colon, place = text.partition(":")
    if name not in TRACKERS:
        raise ConfigError(f"sinks: --log {text!r} is not known; choose {', '.join(TRACKERS)}")
    if colon and not place:
        raise ConfigError(f"sinks: --log {text!r} has no address after the colon; add one, or write {name} alone")
    return TRACKERS[name].make(place)
