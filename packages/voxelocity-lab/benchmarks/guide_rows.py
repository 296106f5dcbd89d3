"""Every statement of three acceleration guides, tried: do its commands work, and is our name for it on a page?

    python benchmarks/guide_rows.py                  # half an hour on two cores
    python benchmarks/guide_rows.py --only 31 59     # the groups that have these rows; the record keeps the others

`guide_rows/rows.yaml` has the 87 rows in groups: what the guide says, the words that a reader looks for, and commands.
Each command runs as a user types it, in an empty folder, with `voxelocity` of this Python's environment. Writes
`guide_rows.json`. Status 1 if a group that was tried is not right. Needs VOXELOCITY_DATA and VOXELOCITY_PEERS.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from harness import BENCHMARKS, RESULTS, ROOT, head, parser_of, real_data, write_record

SCRIPTS = BENCHMARKS / "guide_rows"
STATES = ("as_written", "other_name", "gpu", "impossible")
_PAGES = ("README.md", "docs/names.md", "docs/troubleshooting.md")
_LIMIT_S = 900.0
_COLORS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def groups() -> list[dict[str, Any]]:
    """The groups of rows, in the order of the file."""
    found: list[dict[str, Any]] = yaml.safe_load((SCRIPTS / "rows.yaml").read_text())
    return found


def try_group(group: Mapping[str, Any], work: Path) -> dict[str, Any]:
    """What was seen of a group: its commands with their seconds, and everything that is not as it should be."""
    wrong = [f"no page has {word!r}" for word in missing_words(group)]
    wrong += [f"no record {name}" for name in group.get("records", ()) if not (RESULTS / name).exists()]
    commands = []
    for command in group.get("commands", ()):
        seconds, faults = run_command(command, work)
        commands.append({"run": command["run"], "seconds": round(seconds, 1), "wrong": faults})
        wrong += faults
    seen = {key: group[key] for key in ("rows", "statement", "state", "because", "records") if key in group}
    return {**seen, "commands": commands, "is_right": not wrong, "wrong": wrong}


def missing_words(group: Mapping[str, Any]) -> list[str]:
    """Words of the group that stand on none of the pages where a reader looks first."""
    pages = "".join((ROOT / page).read_text() for page in _PAGES).lower()
    return [word for word in group.get("words", ()) if word.lower() not in pages]


def run_command(command: Mapping[str, Any], work: Path) -> tuple[float, list[str]]:
    """Runs one in `work`: its seconds, and what its status, its words or its files are instead."""
    places = {"{data}": str(real_data()), "{scripts}": str(SCRIPTS), "{repo}": str(ROOT)}
    line = command["run"]
    for place, path in places.items():
        line = line.replace(place, shlex.quote(path))
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    environ |= {"VOXELOCITY_DATA": str(real_data()), "WANDB_MODE": "offline", "COLUMNS": "200"}
    start = time.perf_counter()
    program = subprocess.Popen(
        shlex.split(line), cwd=work, env=environ, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_hear_ctrl_c,
    )  # fmt: skip
    try:
        printed, status = _wait_for(program, command.get("interrupt_s"))
    finally:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
    seconds = time.perf_counter() - start
    return seconds, [f"{command['run']}: {fault}" for fault in _faults(command, printed, status, work)]


def _hear_ctrl_c() -> None:
    # A shell's background jobs ignore Ctrl-C, and so would what they start.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _wait_for(program: subprocess.Popen[str], interrupt_s: float | None) -> tuple[str, int | None]:
    """What it printed, and its status, after Ctrl-C if one is asked for; None if it did not end in time."""
    try:
        return program.communicate(timeout=_LIMIT_S if interrupt_s is None else interrupt_s)[0], program.returncode
    except subprocess.TimeoutExpired:
        if interrupt_s is None:
            return "", None
    os.killpg(program.pid, signal.SIGINT)
    try:
        return program.communicate(timeout=_LIMIT_S)[0], program.returncode
    except subprocess.TimeoutExpired:
        return "", None


def _faults(command: Mapping[str, Any], printed: str, status: int | None, work: Path) -> list[str]:
    if status is None:
        return [f"did not end in {_LIMIT_S:.0f} s"]
    faults = []
    text = _COLORS.sub("", printed)
    if status != command.get("status", 0):
        faults.append(f"status {status} after: {' '.join(text.split())[-600:]}")
    faults += [f"does not say {word!r}" for word in command.get("says", ()) if word.lower() not in text.lower()]
    if "Traceback (most recent call last)" in text:
        faults.append("prints a traceback")
    for name, words in command.get("files", {}).items():
        content = (work / name).read_text(errors="replace") if (work / name).is_file() else None
        if content is None:
            faults.append(f"leaves no {name}")
        else:
            faults += [f"{name} has no {word!r}" for word in words if word.lower() not in content.lower()]
    return faults


def counts(found: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many rows have each state; rows that are not right count as `wrong`."""
    states = [group["state"] if group["is_right"] else "wrong" for group in found for _ in group["rows"]]
    return {state: Counter(states)[state] for state in (*STATES, "wrong")}


def main() -> None:
    parser = parser_of(__doc__, out=True)
    parser.add_argument("--only", nargs="+", type=int, metavar="ROW", help="the groups that have these rows")
    options = parser.parse_args()
    path = options.out / "guide_rows.json"
    before = {tuple(group["rows"]): group for group in json.loads(path.read_text())["groups"]} if path.exists() else {}
    asked = "" if options.only is None else f"--only {shlex.join(map(str, options.only))}"
    record = head("guide_rows", asked)
    found: list[dict[str, Any]] = []
    tried: list[dict[str, Any]] = []
    for group in groups():
        if options.only is None or set(options.only) & set(group["rows"]):
            with tempfile.TemporaryDirectory(prefix="guide-rows-") as work:
                tried.append({**try_group(group, Path(work)), "commit": record["environment"]["commit"]})
            found.append(tried[-1])
            print(group["rows"], "right" if tried[-1]["is_right"] else tried[-1]["wrong"], flush=True)
        elif tuple(group["rows"]) in before:
            found.append(before[tuple(group["rows"])])
    record |= {"counts": counts(found), "groups": found}
    print(record["counts"], write_record(record, "guide_rows", out=options.out))
    sys.exit(not all(group["is_right"] for group in tried))


if __name__ == "__main__":
    main()
