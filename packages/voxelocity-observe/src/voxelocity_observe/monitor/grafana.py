"""Grafana's dashboard of what `openmetrics` writes: `python -m voxelocity_observe.monitor.grafana > FILE`."""

from __future__ import annotations

from importlib import resources


def dashboard() -> str:
    """The dashboard as JSON, for import into Grafana, which asks for the Prometheus data source."""
    return resources.files("voxelocity_observe.monitor").joinpath("grafana.json").read_text(encoding="utf-8")


if __name__ == "__main__":
    print(dashboard(), end="")
