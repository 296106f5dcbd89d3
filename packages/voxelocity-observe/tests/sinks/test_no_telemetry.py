"""No library behind a sink asks anybody anything: a program with all of them runs against a proxy that counts calls."""

import os
import socket
import subprocess
import sys
import threading

import pytest

from shared.limits import HANGS_S
from voxelocity_observe.core.environment import python_path
from voxelocity_observe.sinks import TRACKERS

_PROGRAM = """
import sys, urllib.request
from pathlib import Path
if sys.argv[2] == "ask":
    try:
        urllib.request.urlopen("http://192.0.2.1/", timeout=5)
    except OSError:
        pass
    sys.exit()
from voxelocity_observe.sinks import Outlets, RunStart, choose_sinks
start = RunStart(name="run", folder=Path(sys.argv[1]), config={"seed": 1}, environment={"cpu": "x"})
steps = dict(event="steps", time_s=1.0, step=1, epoch=0, loss=1.0, learning_rate=1.0, num_steps=1, num_images=1,
             seconds=1.0, wait_s=0.0, parts={})
with Outlets(choose_sinks(sys.argv[3:]), start, warn=sys.exit) as outlets:
    outlets.write(steps)
"""


@pytest.fixture
def proxy():
    """A proxy that refuses everything, and the list of what it was asked."""
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def count():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    asked.append(connection.recv(200))

        thread = threading.Thread(target=count)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", asked
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def run(proxy, folder, *arguments):
    address, asked = proxy
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy")
    kept = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": python_path()}
    command = [sys.executable, "-c", _PROGRAM, str(folder / "tracking"), *arguments]
    ended = subprocess.run(
        command,
        # wandb waits half a minute for its own service, which may take longer on a busy machine.
        env={**kept, **dict.fromkeys(names, address), "WANDB__SERVICE_WAIT": str(HANGS_S)},
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return asked


def test_the_proxy_sees_what_is_asked(proxy, tmp_path):
    assert len(run(proxy, tmp_path, "ask")) == 1


def test_the_sinks_ask_nobody_anything(proxy, tmp_path):
    # Torch writes TensorBoard's files, and its import takes as long as all of this.
    asked = {name: tracker for name, tracker in TRACKERS.items() if name != "tensorboard"}
    for name, tracker in asked.items():
        if tracker.package:
            pytest.importorskip(tracker.package, reason=f"the extra '{name}' is not installed")
    assert run(proxy, tmp_path, "sinks", *asked) == []
    assert list((tmp_path / "tracking" / "wandb").glob("offline-run-*"))
    assert (tmp_path / "tracking" / "mlflow.json").exists()
