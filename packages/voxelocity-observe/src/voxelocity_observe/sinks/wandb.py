"""Weights & Biases: a record on disk that `wandb sync` can send; online only on request."""

from __future__ import annotations

import json
import netrc
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.sinks.protocol import Event, RunStart, need_package
from voxelocity_observe.sinks.scalars import ScalarStream, Told


class WandbSink:
    """Writes scalars over steps, plan and environment as config, and the final figures as summary.

    Offline, nothing is sent: neither the record nor usage statistics. A resumed run's record is then written again,
    whole, under its old id, and replaces the earlier one: with several records of one id, `wandb sync` lets the last
    one replace the others (their issue 3841). Online, the run continues on the server, and steps that it already holds
    are not sent again.

    Args:
        is_online: send while the run is active, as the user who is logged in.
        project: to sort runs by.

    Raises:
        ConfigError: the package wandb is not installed, or nobody is logged in for a run that is to be sent.
    """

    name = "wandb"

    def __init__(self, *, is_online: bool = False, project: str = "voxelocity") -> None:
        need_package("wandb", sink=self.name)
        if is_online and not _is_logged_in():
            # W&B itself would ask for a key, in the middle of the training and in a thread.
            raise ConfigError(
                "sinks: --log wandb:online needs a login, and there is neither a key in WANDB_API_KEY nor one for "
                f"{_host()} in the netrc file; `wandb login` stores one, or write --log wandb for a record on disk"
            )
        self._is_online, self._project = is_online, project
        # Reports of errors and usage to its makers; read when the package is imported.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

    def begin(self, run: RunStart) -> None:
        """Opens the record; offline, with everything of earlier sessions that still counts."""
        import wandb

        run.folder.mkdir(parents=True, exist_ok=True)
        run_id, earlier = _run_id(run), _offline_folders(run)
        self._run: Any = wandb.init(
            project=self._project,
            name=run.name,
            id=run_id,
            dir=str(run.folder),
            config={**run.config, "environment": dict(run.environment)},
            resume="allow" if self._is_online else None,
            settings=wandb.Settings(
                mode="online" if self._is_online else "offline",
                console="off",
                silent=True,
                disable_git=True,
                disable_code=True,
                # Our own record of the environment names no host and no user.
                x_disable_meta=True,
                x_disable_machine_info=True,
                x_disable_stats=not self._is_online,
            ),
        )
        self._stream = ScalarStream()
        self._told = Told(run.told if self._run.resumed else ())
        self._has_finished = False
        if not self._run.resumed:
            for event in run.kept:
                self.write(event)
        for folder in earlier:
            shutil.rmtree(folder, ignore_errors=True)

    def write(self, event: Event) -> None:
        """Adds the numbers of an event; those of the end are the summary."""
        self._has_finished = event["event"] == "run_finished"
        scalars = self._stream.of(event)
        if scalars is None:
            return
        if self._has_finished:
            self._run.summary.update(scalars.values)
        elif not self._told.holds(event):
            self._run.log(dict(scalars.values), step=scalars.step)

    def end(self) -> None:
        self._run.finish(exit_code=0 if self._has_finished else 1)


def _is_logged_in() -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    named = os.environ.get("NETRC")
    for path in [Path(named)] if named else [Path.home() / ".netrc", Path.home() / "_netrc"]:
        try:
            if netrc.netrc(path).authenticators(_host()):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False


def _host() -> str:
    return urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""


def _run_id(run: RunStart) -> str:
    """The id of the run, made once and kept, because the record of a resumed run must have the same."""
    path = run.folder / "wandb.json"
    if run.is_resumed and path.exists():
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    readable = re.sub(r"[^A-Za-z0-9]+", "-", run.name).strip("-")[:40]
    run_id = f"{readable}-{secrets.token_hex(4)}"
    path.write_text(json.dumps({"id": run_id}) + "\n", encoding="utf-8")
    return run_id


def _offline_folders(run: RunStart) -> list[Path]:
    return sorted((run.folder / "wandb").glob("offline-run-*"))
