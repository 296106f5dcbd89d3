"""An epoch of a data set on an S3 server of this machine: nothing fetched, everything fetched, and from a local folder.

Also with 50 ms added to each request, as for a distant server, with and without files that come ahead of their readers.

    python benchmarks/remote.py [--rounds 5] [--out FOLDER]

Needs `moto_server` on the PATH and s3fs (`pip install 'moto[server]' s3fs`, the former in an environment of its own).
Each epoch decodes and prepares all scans of a data set once, in a fresh process, without a cache. Writes
`results/remote.json`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import head, parser_of, real_data, run_fresh, write_record

_DATASETS = {"208 small MR crops": "hippocampus", "20 head-and-neck CTs": "openkbp_headneck_ct"}
_PORT = 24_507

_EPOCH = """
import json, sys, time
begin_s = time.perf_counter()
import voxelocity as vx
from voxelocity.core import staging
from voxelocity.training.building import cache_job
staging._NUM_AT_ONCE = int(sys.argv[2])
cases = vx.open(sys.argv[1])
opened_s = time.perf_counter()
job = cache_job(cases, device="cpu", overrides={"planner.measure": "never"})
from voxelocity.data.pipeline import PreparedCases
prepared = PreparedCases(
    job.refs, label_values=job.label_values, prepare=job.data.prepare, warn=print,
    cache=job.data.cache.model_copy(update={"tier": "none"}),
)
planned_s = time.perf_counter()
facts = prepared.fill(num_threads=job.num_threads, on_case=lambda *_: None, should_stop=lambda: False)
print(json.dumps({
    "open_s": opened_s - begin_s, "plan_s": planned_s - opened_s, "epoch_s": facts.seconds,
    "num_bytes": facts.num_bytes,
}))
"""


_FAR_S = 0.05


@contextmanager
def distant(port: int) -> Iterator[int]:
    """A port that leads to that one, and keeps what is sent to it for a while, within the block."""

    async def pass_on(source: asyncio.StreamReader, to: asyncio.StreamWriter, wait_s: float) -> None:
        while content := await source.read(1 << 20):
            await asyncio.sleep(wait_s)
            to.write(content)
        to.close()

    async def connect(client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        server, to = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pass_on(client, to, _FAR_S), pass_on(server, back, 0.0), return_exceptions=True)

    loop = asyncio.new_event_loop()
    listening = loop.run_until_complete(asyncio.start_server(connect, "127.0.0.1"))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


@contextmanager
def bucket(folder: Path, environ: Mapping[str, str]) -> Iterator[str]:
    """The URL of a copy of the folder on a server that runs within the block."""
    server = shutil.which("moto_server")
    if server is None:
        sys.exit("remote.py: moto_server is not on the PATH; install it with `pip install 'moto[server]'`")
    process = subprocess.Popen(
        [server, "-H", "127.0.0.1", "-p", str(_PORT)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(200):
            with socket.socket() as asked:
                if asked.connect_ex(("127.0.0.1", _PORT)) == 0:
                    break
            time.sleep(0.1)
        os.environ.update(environ)
        import s3fs

        files = s3fs.S3FileSystem(skip_instance_cache=True)
        files.mkdir("scans")
        files.put(str(folder), "scans/data", recursive=True)
        yield "s3://scans/data"
    finally:
        process.terminate()
        process.wait()


def measure(folder: Path, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Seconds of each epoch by side."""
    sides: dict[str, list[dict[str, float]]] = {
        side: [] for side in ("local", "cold", "fetched", "far", "far, one by one")
    }
    with tempfile.TemporaryDirectory() as work:
        environ = {
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{_PORT}",
            "XDG_CACHE_HOME": work,
        }
        with bucket(folder, environ) as url, distant(_PORT) as far_port:
            far = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{far_port}"}
            for number in range(rounds):
                # A mirror that the round before filled is not cold.
                for side, place, cache, num_ahead, server in (
                    ("local", str(folder), "near", 8, {}),
                    ("cold", url, "near", 8, {}),
                    ("fetched", url, "near", 8, {}),
                    ("far", url, "far", 8, far),
                    ("far, one by one", url, "far1", 0, far),
                ):
                    caches = {**environ, **server, "XDG_CACHE_HOME": f"{work}/{number}/{cache}"}
                    sides[side].append(run_fresh("-c", _EPOCH, place, num_ahead, environ=caches))
    return sides


def main() -> None:
    parser = parser_of(__doc__, out=True)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    record = head("remote", f"--rounds {options.rounds}")
    found: dict[str, Any] = {}
    for name, folder in _DATASETS.items():
        found[name] = measure(real_data() / folder, options.rounds)
        print(name, json.dumps(found[name]), flush=True)
    print(write_record({**record, "found": found}, "remote", out=options.out))


if __name__ == "__main__":
    main()
