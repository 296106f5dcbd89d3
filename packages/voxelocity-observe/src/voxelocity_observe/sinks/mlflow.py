"""MLflow: a folder of files below the run's, or whatever a tracking URI names."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from typing import Any

from voxelocity_observe.core.quantities import dotted
from voxelocity_observe.sinks.protocol import Event, RunStart, need_package
from voxelocity_observe.sinks.scalars import ScalarStream, Told

# What the store takes at once and in one value.
_MAX_PARAMS = 100
_MAX_METRICS = 1000
_MAX_VALUE_LENGTH = 500
_NOT_IN_A_NAME = re.compile(r"[^\w\-. /:]")


class MlflowSink:
    """Writes metrics over steps, the plan as parameters and the environment as tags.

    MLflow cannot remove points: steps that the record already holds are not written again when a run resumes. MLflow's
    usage statistics are off. MLflow only maintains its file store and refuses it unless `MLFLOW_ALLOW_FILE_STORE` is
    set; a database would need SQLAlchemy and takes 7 ms per point instead of 0.5.

    Args:
        tracking_uri: of a server or a database; a folder `mlflow` below the run's `tracking` if not given.
        experiment: to sort runs by.

    Raises:
        ConfigError: neither mlflow nor mlflow-skinny is installed.
    """

    name = "mlflow"

    def __init__(self, tracking_uri: str | None = None, *, experiment: str = "voxelocity") -> None:
        need_package("mlflow", sink=self.name)
        self._uri, self._experiment = tracking_uri, experiment
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

    def begin(self, run: RunStart) -> None:
        if self._uri is None:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        _silence()
        from mlflow import MlflowClient

        run.folder.mkdir(parents=True, exist_ok=True)
        self._client: Any = MlflowClient(tracking_uri=self._uri or (run.folder / self.name).absolute().as_uri())
        self._id, is_new = self._run_id(run)
        self._stream = ScalarStream()
        self._told = Told(() if is_new else run.told)
        self._status = "FAILED"
        if is_new:
            self._describe(run)
            # A record that begins with a resumed run, because the sink was not used before, gets all of it.
            for event in run.kept:
                self.write(event)
        else:
            self._client.update_run(self._id, status="RUNNING")

    def write(self, event: Event) -> None:
        from mlflow.entities import Metric

        self._status = {"run_finished": "FINISHED", "interrupted": "KILLED"}.get(event["event"], "FAILED")
        scalars = self._stream.of(event)
        if scalars is None or self._told.holds(event):
            return
        now_ms = int(time.time() * 1000)
        metrics = [Metric(_name(key), value, now_ms, scalars.step) for key, value in scalars.values.items()]
        for start in range(0, len(metrics), _MAX_METRICS):
            self._client.log_batch(self._id, metrics=metrics[start : start + _MAX_METRICS])

    def end(self) -> None:
        self._client.set_terminated(self._id, status=self._status)

    def _run_id(self, run: RunStart) -> tuple[str, bool]:
        path = run.folder / "mlflow.json"
        if run.is_resumed and path.exists():
            return str(json.loads(path.read_text(encoding="utf-8"))["run_id"]), False
        found = self._client.get_experiment_by_name(self._experiment)
        experiment_id = found.experiment_id if found else self._client.create_experiment(self._experiment)
        run_id = str(self._client.create_run(experiment_id, run_name=run.name).info.run_id)
        path.write_text(json.dumps({"run_id": run_id}) + "\n", encoding="utf-8")
        return run_id, True

    def _describe(self, run: RunStart) -> None:
        from mlflow.entities import Param, RunTag

        settings = [Param(_name(key), _text(value)) for key, value in dotted(run.config).items()]
        for start in range(0, len(settings), _MAX_PARAMS):
            self._client.log_batch(self._id, params=settings[start : start + _MAX_PARAMS])
        environment = dotted(run.environment, "environment.")
        self._client.log_batch(self._id, tags=[RunTag(_name(key), _text(value)) for key, value in environment.items()])


def _silence() -> None:
    """MONAI imports MLflow where it is installed, and with it a client for usage statistics that is removed here."""
    loaded: Any = sys.modules.get("mlflow.telemetry")
    if loaded is not None:
        loaded.set_telemetry_client()


def _name(key: str) -> str:
    """The key with what MLflow refuses in names replaced."""
    return _NOT_IN_A_NAME.sub("_", key)


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text[:_MAX_VALUE_LENGTH]
