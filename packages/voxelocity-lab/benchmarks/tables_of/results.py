"""Result files, and the pieces that every table is made of."""

from __future__ import annotations

import functools
import json
import math
import re
import shlex
import statistics
import subprocess
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from harness import RESULTS
from voxelocity_observe.core.quantities import bytes_text, duration_text, figure_text


def load(pattern: str) -> list[dict[str, Any]]:
    """Result files by name, each with its own name under "file"; those with a `refusal` are left out."""
    records = [json.loads(path.read_text()) | {"file": path.name} for path in sorted(RESULTS.glob(pattern))]
    return [record for record in records if not refusal(record)]


def refused() -> list[str]:
    """A line for each result file that no table may show, with its reason."""
    records = ((path.name, json.loads(path.read_text())) for path in sorted(RESULTS.glob("*.json")))
    return [f"{name}: {why}" for name, record in records if (why := refusal(record))]


def refusal(record: dict[str, Any]) -> str:
    """Why no table may show this record: nobody could repeat what it measured. Empty where one may."""
    for known in (record.get("environment", {}).get("commit"), *record.get("commits", {}).values()):
        commit = str(known or "")
        if commit.endswith("-dirty"):
            return "measured with uncommitted changes"
        if not is_in_history(commit):
            return f"measured at commit {commit[:12] or 'unknown'}, which this repository does not hold"
    return ""


@functools.cache
def is_in_history(commit: str) -> bool:
    """Whether the checkout holds this commit."""
    if not re.fullmatch("[0-9a-f]{40}", commit):
        return False
    command = ["git", "-C", str(RESULTS), "merge-base", "--is-ancestor", commit, "HEAD"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def of_records(name: str) -> Callable[[Callable[[dict[str, Any]], list[str]]], Callable[[], list[str]]]:
    """Makes lines of a record into lines of the result file of this name; none where no table may show it."""

    def decorate(lines: Callable[[dict[str, Any]], list[str]]) -> Callable[[], list[str]]:
        return lambda: [line for record in load(name) for line in lines(record)]

    return decorate


def source_line(record: dict[str, Any], rows: Mapping[str, Any] | None = None) -> str:
    """Where a record comes from: the command that repeats it, date, commit and machine, which may have been busy.

    Of a record whose rows were measured by several calls, of which it keeps the last command, the commits of the others
    come first, with their processors if those differ.
    """
    environment = record["environment"]
    last, others = str(environment.get("commit") or "unknown"), ""
    command, _, only = record["command"].partition(" --only " if rows else "\0")
    by_commit: dict[str, list[str]] = {}
    for name, row in (rows or {}).items():
        known = record.get("commits", {}).get(name) or (row.get("commit") if isinstance(row, dict) else None)
        # Earlier versions of some scripts did not record it.
        commit = known or ("not recorded" if only and name not in shlex.split(only) else last)
        cpu = record.get("cpus", {}).get(name) or environment["cpu"]
        elsewhere = f", {cpu}" if cpu != environment["cpu"] else ""
        if commit != last or elsewhere:
            by_commit.setdefault(f"{commit[:12]}{elsewhere}", []).append(name)
    for commit, names in by_commit.items():
        others += f"{'; '.join(names)}: commit {commit}. "
    date = f"{record['date']}, " if "date" in record else ""
    return (
        f"{others}`{command}`, {date}commit {last[:12]}, {environment['cpu']}, {environment['num_cpus']} cores, "
        f"{bytes_text(environment['memory_bytes'])}, GPU: {environment['gpu'] or 'none'}."
    )


def markdown_table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """A table in Markdown."""
    titles = list(header)
    body = ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles), *body]


def columns(rows: Iterable[Any], *cells: tuple[str, Callable[[Any], object]]) -> list[str]:
    """A table in Markdown: the head of each column, and its cell for a row."""
    return markdown_table((head for head, _ in cells), ([cell(row) for _, cell in cells] for row in rows))


def range_text(figure: dict[str, float]) -> str:
    """Median, least and most."""
    return f"{figure_text(figure['median'])} ({figure_text(figure['low'])} to {figure_text(figure['high'])})"


def percents(figure: dict[str, float]) -> str:
    """Median, least and most of shares."""
    return f"{figure['median']:.2%} ({figure['low']:.2%} to {figure['high']:.2%})"


def times_to_target(race: dict[str, Any]) -> dict[str, str]:
    """For each side, when it reached the target: the median, the range and how many of its seeds got there."""
    words = {}
    within = f" within {duration_text(race['limit_s'])}" if race.get("limit_s") else ""
    for label, seconds in race["seconds_to_target"].items():
        known = [value for value in seconds if value is not None]
        missed = f"not{within} in {len(seconds) - len(known)} of {len(seconds)}"
        middle = statistics.median([math.inf if value is None else value for value in seconds])
        found = [duration_text(middle)] if math.isfinite(middle) else []
        if found and len(known) > 1:
            found = [f"{found[0]} ({duration_text(min(known))} to {duration_text(max(known))})"]
        if len(known) < len(seconds):
            found.append(missed)
        words[label] = ", ".join(found)
    return words
