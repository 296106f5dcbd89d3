"""Run the experiments of this folder on a GPU, one after another, and keep what each finds in one record a device.

    python benchmarks/gpu/run.py --list                 # the questions, and what is recorded on which device
    python benchmarks/gpu/run.py --list --update        # the same, also in README.md
    python benchmarks/gpu/run.py --only E1,E6 --limit 540
    python benchmarks/gpu/run.py --only E11 --set E11.folds=1 --set E11.expected=110
    python benchmarks/gpu/run.py --dry-run              # all of them, tiny, on the CPU: whether the scripts work

Each experiment is a process of its own with a time limit of its own (1.5 times what it is expected to take, which the
option `expected` replaces), after which it is ended with all that it started; rows that it reported before are kept.
After each one `gpu_<device>.json` is written, where results of experiments that were not run stay. Prints rows in short
and a table last; with `--out`, logs and all rows as they come are there too.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(_HERE.parent))

from gpu.experiment import Experiment, Row, Setting, end_tree  # noqa: E402
from harness import RESULTS, head, parser_of, write_record  # noqa: E402
from voxelocity_observe.core.environment import python_path  # noqa: E402

README = _HERE / "README.md"
_BEGIN = "<!-- list: made by gpu/run.py -->"
_END = "<!-- /list -->"
LIMIT_S = 540.0
"""For all experiments of a call; machines with a GPU are often lent for ten minutes."""
_DRY_LIMIT_S = 240.0
_STDERR_CHARS = 300
_PRINTED_CHARS = 9000
_ONLY_RECORDED = "plan"
"""Tables of this name are in the record and are not printed."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A module of this folder; without an experiment where it could not be imported, for which `error` has a reason."""

    path: Path
    experiment: Experiment | None
    error: str = ""

    @property
    def id(self) -> str:
        """Of the experiment; of a broken module as its file is named: `e06_race.py` holds E6."""
        return self.experiment.id if self.experiment else f"E{int(self.path.stem[1:].split('_')[0])}"

    @property
    def seconds(self) -> float:
        return self.experiment.seconds if self.experiment else 0.0


@dataclass(frozen=True, kw_only=True)
class Call:
    """What all experiments of a call share.

    Attributes:
        device: "cuda" or "cpu".
        is_tiny: whether this is a dry run.
        logs: folder of the log and of the rows as they come.
        options: by experiment and name.
    """

    device: str
    is_tiny: bool
    logs: Path
    options: Mapping[str, Mapping[str, str]]


def find_experiments(folder: Path = _HERE) -> list[Found]:
    """Every `e*.py` of the folder, by its number."""
    return sorted(map(_load, folder.glob("e[0-9]*.py")), key=lambda found: int(found.id[1:]))


def _load(path: Path) -> Found:
    spec = importlib.util.spec_from_file_location(f"gpu.{path.stem}", path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        experiment: Experiment = module.EXPERIMENT
    except Exception as error:  # the others are to be run all the same
        return Found(path=path, experiment=None, error=f"{type(error).__name__}: {error}"[:_STDERR_CHARS])
    return Found(path=path, experiment=experiment)


def limit_of(found: Found, call: Call, left_s: float) -> float:
    """Seconds that an experiment may take of those left; 0 where too few are left to begin it."""
    if call.is_tiny:
        return min(_DRY_LIMIT_S, left_s)
    expected_s = float(call.options.get(found.id, {}).get("expected", found.seconds))
    if left_s < 0.7 * expected_s:
        return 0.0
    return min(max(1.5 * expected_s, expected_s + 30.0), left_s)


def run_experiment(found: Found, call: Call, limit_s: float) -> dict[str, Any]:
    """Runs an experiment in a process of its own: its part of the record."""
    asked: dict[str, Any] = {"question": found.experiment.question if found.experiment else ""}
    if found.experiment is None:
        return {**asked, "status": "failed", "seconds": 0.0, "error": found.error, "tables": {}}
    if limit_s <= 0.0:
        return {**asked, "status": "not begun", "seconds": 0.0, "error": "too little time is left", "tables": {}}
    rows, log = call.logs / "gpu_rows.jsonl", call.logs / "gpu.log"
    rows_at, log_at = _size(rows), _size(log)
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        job = {
            "path": str(found.path), "device": call.device, "is_tiny": call.is_tiny, "limit_s": limit_s,
            "rows": str(rows), "work": work, "options": dict(call.options.get(found.id, {})),
        }  # fmt: skip
        status = _end_of([sys.executable, str(Path(__file__).resolve()), "--job", json.dumps(job)], log, limit_s, call)
    seconds = time.monotonic() - begin_s
    result = {**asked, "status": status, "seconds": seconds, "limit_s": limit_s, "options": job["options"]}
    if status != "done":
        result["error"] = (
            _text_from(log, log_at)[-_STDERR_CHARS:].strip() or f"ended without a word after {seconds:.0f} s"
        )
    return {**result, "tables": tables_of(_text_from(rows, rows_at), found.id)}


def _end_of(command: Sequence[str], log: Path, limit_s: float, call: Call) -> str:
    """How a process and all that it started ended: "done", "failed" or "out of time"."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_HERE.parent), python_path()])}
    if call.is_tiny:
        environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    with log.open("ab") as written:
        # A session of its own, so that its loaders and programs end with it.
        process = subprocess.Popen(command, stdout=written, stderr=written, env=environ, start_new_session=True)
        try:
            return "done" if process.wait(limit_s) == 0 else "failed"
        except subprocess.TimeoutExpired:
            return "out of time"
        finally:
            end_tree(process)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _text_from(path: Path, start: int) -> str:
    return path.read_bytes()[start:].decode(errors="replace") if path.exists() else ""


def tables_of(lines: str, experiment: str) -> dict[str, list[Row]]:
    """The rows by table; a last line that was cut off when its process was ended is left out."""
    tables: dict[str, list[Row]] = {}
    for line in lines.splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            entry = json.loads(line)
            if entry["experiment"] == experiment:
                tables.setdefault(entry["table"], []).append(entry["row"])
    return tables


def plain(value: Any) -> Any:
    """A value as JSON takes it: what is not a number, text or truth value becomes a text."""
    if hasattr(value, "tolist"):  # of NumPy and of torch
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def run_job(text: str) -> None:
    """What the process of one experiment does."""
    import torch

    job = json.loads(text)
    found, rows = _load(Path(job["path"])), Path(job["rows"])
    assert found.experiment is not None, found.error

    def report(table: str, row: Row) -> None:
        entry = {"experiment": found.id, "table": table, "row": {key: plain(value) for key, value in row.items()}}
        with rows.open("a") as file:
            file.write(f"{json.dumps(entry)}\n")

    setting = Setting(
        device=torch.device(job["device"]),
        is_tiny=job["is_tiny"],
        work=Path(job["work"]),
        limit_s=job["limit_s"],
        report=report,
        options=job["options"],
    )
    print(f"== {found.id}: {found.experiment.question}", flush=True)
    try:
        found.experiment.run(setting)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        # Threads and loaders of an experiment that failed may never end.
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)


def merged(before: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Results by experiment with those of an earlier record, which stay where nothing new was found."""
    found = dict(before.get("experiments", {}))
    for name, result in results.items():
        if result["tables"] or result["status"] == "done" or not found.get(name, {}).get("tables"):
            found[name] = dict(result)
    return {name: found[name] for name in sorted(found, key=lambda name: int(name[1:]))}


def machine_facts(*, is_tiny: bool) -> dict[str, Any]:
    """The device and what drives it. No CUDA context of this process takes memory from an experiment."""
    import torch

    facts = {"device": "dry run", "driver": None, "torch": torch.__version__, "cuda": torch.version.cuda}
    facts["triton"] = _version("triton")
    if not is_tiny:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        facts |= {
            "device": _text(pynvml.nvmlDeviceGetName(handle)),
            "driver": _text(pynvml.nvmlSystemGetDriverVersion()),
        }
    return facts


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def lines_of(tables: Mapping[str, Sequence[Row]], num_chars: int) -> list[str]:
    """Rows in short, as many as fit into this many characters."""
    lines, left = [], num_chars
    for name, rows in tables.items():
        if name == _ONLY_RECORDED:
            continue
        lines.append(f" {name}")
        for row in rows:
            line = "  " + "  ".join(value if key == "what" else f"{key} {value}" for key, value in _short(row))[:400]
            left -= len(line)
            if left < 0:
                return [*lines, "  ... the record has the rest"]
            lines.append(line)
    return lines


def _short(row: Row) -> list[tuple[str, str]]:
    return [(key, f"{value:.4g}" if isinstance(value, float) else str(value)) for key, value in row.items()]


def listed(experiments: Sequence[Found], records: Sequence[Path]) -> list[str]:
    """A table in Markdown: each experiment, and when and how it ended on each device."""
    lines = ["| id | question | seconds | recorded |", "|---|---|---|---|"]
    kept = [json.loads(path.read_text()) for path in records]
    for found in experiments:
        ends = [
            f"{record['device']}: {result['status']}, {result['date']}"
            for record in kept
            for result in [record["experiments"].get(found.id)]
            if result is not None
        ]
        question = found.experiment.question if found.experiment else found.error
        lines.append(f"| {found.id} | {question} | {found.seconds:.0f} | {'; '.join(ends) or 'no'} |")
    return lines


def known_records(folder: Path = RESULTS) -> list[Path]:
    """The records of this script; one of another was made by its forerunner."""
    return [path for path in sorted(folder.glob("gpu_*.json")) if "experiments" in json.loads(path.read_text())]


def with_list(text: str, lines: Sequence[str]) -> str:
    """A page with these lines between its two marks."""
    before, rest = text.split(_BEGIN)
    return f"{before}{_BEGIN}\n{chr(10).join(lines)}\n{_END}{rest.split(_END)[1]}"


def summary_of(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line an experiment: how it ended, in how many seconds, with how many rows."""
    lines = [f"{'id':4} {'status':12} {'s':>5} {'rows':>5}"]
    for name, result in results.items():
        num_rows, error = sum(map(len, result["tables"].values())), str(result.get("error", ""))[-150:]
        lines.append(
            f"{name:4} {result['status']:12} {result['seconds']:5.0f} {num_rows:5}  {' '.join(error.split())}".rstrip()
        )
    return lines


def run_all(
    chosen: Sequence[Found], call: Call, limit_s: float, keep: Callable[[Mapping[str, Mapping[str, Any]]], None]
) -> dict[str, dict[str, Any]]:
    """Runs them in order; `keep` is called with the results so far after each."""
    begin_s, results = time.monotonic(), dict[str, dict[str, Any]]()
    for found in chosen:
        left_s = limit_s - (time.monotonic() - begin_s)
        result = run_experiment(found, call, limit_of(found, call, left_s))
        results[found.id] = result
        print(f"{found.id} {result['status']}, {result['seconds']:.0f} s: {result['question']}", flush=True)
        for line in lines_of(result["tables"], _PRINTED_CHARS // len(chosen)):
            print(line)
        if "error" in result:
            print(f"  {result['error']}", flush=True)
        keep(results)
    return results


def chosen_of(experiments: Sequence[Found], only: str) -> list[Found]:
    """Those named, in that order; all where none is named.

    Raises:
        SystemExit: one is unknown.
    """
    if not only:
        return list(experiments)
    by_id = {found.id: found for found in experiments}
    names = [name.strip().upper() for name in only.split(",") if name.strip()]
    if unknown := [name for name in names if name not in by_id]:
        sys.exit(f"run.py: unknown experiment {', '.join(unknown)}; choose among {', '.join(by_id)}")
    return [by_id[name] for name in names]


def options_of(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """`E11.folds=1` by experiment and name."""
    options: dict[str, dict[str, str]] = {}
    for text in texts:
        key, _, value = text.partition("=")
        name, _, option = key.partition(".")
        if not (name and option and value):
            sys.exit(f"run.py: --set takes ID.NAME=VALUE, not '{text}'")
        options.setdefault(name.upper(), {})[option] = value
    return options


def main(arguments: Sequence[str] | None = None, *, folder: Path = _HERE) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--list", action="store_true", help="the experiments and what is recorded; runs nothing")
    parser.add_argument("--update", action="store_true", help="with --list: also write the table into README.md")
    parser.add_argument("--only", default="", help="some of them, as E1,E6; in this order")
    parser.add_argument(
        "--set", action="append", default=[], metavar="ID.NAME=VALUE", help="an option of an experiment"
    )
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for all of them")
    parser.add_argument("--dry-run", action="store_true", help="tiny, on the CPU; nothing is recorded without --out")
    parser.add_argument(
        "--out", type=Path, help=f"folder of the record, the log and the rows; {RESULTS.name} holds records"
    )
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.job:
        run_job(options.job)
    experiments = find_experiments(folder)
    if options.list:
        lines = listed(experiments, known_records())
        print("\n".join(lines))
        if options.update:
            README.write_text(with_list(README.read_text(), lines))
        return
    is_tiny = options.dry_run
    if not is_tiny and not _has_device():
        sys.exit("run.py: torch sees no CUDA device; run this where there is one, or give --dry-run")
    facts, chosen = machine_facts(is_tiny=is_tiny), chosen_of(experiments, options.only)
    asked = shlex.join(sys.argv[1:] if arguments is None else arguments)
    first = {**head("gpu/run", asked), **facts}
    print(f"{facts['device']}, driver {facts['driver']}, torch {facts['torch']}, triton {facts['triton']}", flush=True)
    name = f"gpu_{str(facts['device']).lower().replace(' ', '_')}"
    with tempfile.TemporaryDirectory() as temporary:
        logs = options.out or Path(temporary)
        logs.mkdir(parents=True, exist_ok=True)
        out = options.out or (logs if is_tiny else RESULTS)
        earlier = next((path for path in (out / f"{name}.json", RESULTS / f"{name}.json") if path.exists()), None)
        before = json.loads(earlier.read_text()) if earlier else {}
        stamp = {"date": first["date"], "commit": first["environment"]["commit"], "command": first["command"], **facts}

        def keep(results: Mapping[str, Mapping[str, Any]]) -> None:
            stamped = {name: {**result, **stamp} for name, result in results.items()}
            write_record({**first, "experiments": merged(before, stamped)}, name, out=out)

        call = Call(device="cpu" if is_tiny else "cuda", is_tiny=is_tiny, logs=logs, options=options_of(options.set))
        results = run_all(chosen, call, math.inf if is_tiny else options.limit, keep)
    print("\n".join(summary_of(results)))
    sys.exit(any(result["status"] in ("failed", "out of time") for result in results.values()))


def _has_device() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("run.py: ended from outside"))
    main()
