"""The tables of scaling out: several ranks, what happens when one fails, data on a server."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from typing import Any

from tables_of.results import markdown_table, of_records, source_line
from voxelocity.core.quantities import bytes_text, duration_text

_MOST_NAMED = 4


@of_records("ranks.json")
def rank_lines(record: dict[str, Any]) -> list[str]:
    """What was measured of several ranks, one table after another."""
    found = record["found"]
    tables: dict[str, Callable[[Any], list[str]]] = {
        "losses": _losses,
        "dice": _dice,
        "overhead": _overhead,
        "unequal": _unequal,
        "nodes": _nodes,
    }
    lines = [line for name, table in tables.items() if name in found for line in (*table(found[name]), "")]
    return [*lines, f"{_commits(record)}{source_line(record)}"]


@of_records("rank_memory.json")
def memory_lines(record: dict[str, Any]) -> list[str]:
    """How models were distributed over two ranks, and what that took."""
    found = record["found"]
    tables: dict[str, Callable[[Any], list[str]]] = {"fit": _fit, "decisions": _decisions}
    lines = [line for name, table in tables.items() if name in found for line in (*table(found[name]), "")]
    return [*lines, f"{_commits(record)}{source_line(record)}"]


@of_records("rank_faults.json")
def fault_lines(record: dict[str, Any]) -> list[str]:
    """What happens when a rank fails, by fault."""
    rows = [
        (
            name,
            f"not within {record['most_s']:.0f} s" if one["seconds"] is None else f"{one['seconds']:.1f} s",
            "" if one["seconds"] is None else f"{one['status']}",
            _said(one),
            "" if one["whole_checkpoint_step"] is None else f"step {one['whole_checkpoint_step']}",
        )
        for name, one in record["found"].items()
    ]
    heads = ("fault, where", "the job ended after", "status", "what it printed", "newest whole checkpoint")
    return [*markdown_table(heads, rows), "", f"{_commits(record)}{source_line(record)}"]


@of_records("remote.json")
def remote_lines(record: dict[str, Any]) -> list[str]:
    """Seconds of an epoch on data of a server."""
    names = {
        "local": "local folder",
        "cold": "server, nothing fetched",
        "fetched": "server, all fetched before",
        "far": "server 50 ms away, nothing fetched",
        "far, one by one": "server 50 ms away, nothing fetched, no files ahead of use",
    }
    rows = []
    for data, sides in record["found"].items():
        local = [sum(one[key] for key in ("open_s", "plan_s", "epoch_s")) for one in sides["local"]]
        for side, each in sides.items():
            total = [sum(one[key] for key in ("open_s", "plan_s", "epoch_s")) for one in each]
            ratio = statistics.median(one / other for one, other in zip(total, local, strict=True))
            epoch = statistics.median(one["epoch_s"] for one in each)
            middle = f"{statistics.median(total):.1f} ({min(total):.1f} to {max(total):.1f})"
            rows.append((data, names[side], middle, f"{epoch:.1f}", f"{ratio:.2f}", str(len(each))))
    heads = ("data", "from", "open, plan and one epoch, s", "of which the epoch", "times the local folder", "n")
    return [*markdown_table(heads, rows), "", source_line(record)]


def _commits(record: dict[str, Any]) -> str:
    """Which measurements are of another commit than the last one."""
    last = record["environment"]["commit"]
    by_commit: dict[str, list[str]] = {}
    for name, commit in record.get("commits", {}).items():
        if commit != last:
            by_commit.setdefault(commit[:12], []).append(name)
    total = len(record.get("commits", {}))
    return "".join(
        f"{'; '.join(names) if len(names) <= _MOST_NAMED else f'{len(names)} of {total} rows'}: commit {commit}. "
        for commit, names in by_commit.items()
    )


def _said(one: dict[str, Any]) -> str:
    texts = [re.sub(r" \(process \d+ on \S+\)", "", text.partition(": ")[2]) for text in one["messages"]]
    traceback = ["one traceback, with its rank"] if one["num_tracebacks"] == 1 else []
    return "; ".join([*(text.partition(";")[0].partition(" (")[0] for text in texts), *traceback])


def _losses(found: dict[str, Any]) -> list[str]:
    alone = found["1"]["patches_per_s"]
    rows = [
        (size, f"{one['largest_difference']:.1e}", f"{one['patches_per_s']:.1f}", f"{one['patches_per_s'] / alone:.2f}")
        for size, one in found.items()
    ]
    heads = (
        "ranks of one thread",
        "largest difference of a loss from one process",
        "patches a second",
        "times one rank",
    )
    return markdown_table(heads, rows)


def _dice(found: dict[str, Any]) -> list[str]:
    rows = [
        (size, f"{one['mean_dice']:.3f}", f"{one['step']:,}", f"{one['images_per_s']:.1f}")
        for size, one in found.items()
    ]
    return markdown_table(("ranks of one thread", "Dice after 5 minutes", "steps", "patches a second"), rows)


def _overhead(found: dict[str, Any]) -> list[str]:
    low, middle, high = found["ratio_quartiles"]
    rows = [
        (
            f"{1000 * found['ours_s']:.1f}",
            f"{1000 * found['plain_s']:.1f}",
            f"{middle:.3f} ({low:.3f} to {high:.3f})",
            f"{found['n']:,}",
        )
    ]
    heads = ("a step in a world of one, ms", "in a loop of PyTorch alone, ms", "ratio, median (middle half)", "n")
    return markdown_table(heads, rows)


def _decisions(found: list[dict[str, Any]]) -> list[str]:
    rows = [
        (
            one["model"],
            " + ".join(f"{limit:g} GB" for limit in one["limits_gb"]),
            one.get("mode", "refused"),
            *(
                ", ".join(f"{value / 1e9:.2f}" for value in one.get(f"{kind}_bytes", ()))
                for kind in ("predicted", "measured")
            ),
        )
        for one in found
    ]
    return markdown_table(("model", "devices", "chosen", "predicted, GB", "measured, GB"), rows)


def _unequal(found: dict[str, Any]) -> list[str]:
    rows = [
        (
            f"{name} shares",
            "{:.0f} ({:.0f} to {:.0f})".format(
                *(1000 * of(found[name]) for of in (statistics.median, min, max)),
            ),
            f"{found[f'{name}_difference']:.1e}",
        )
        for name in ("equal", "balanced")
    ]
    heads = ("a rank that is half as fast", "a step, ms", "sums of the weights after a step, relative to one process")
    return markdown_table(heads, rows)


def _nodes(found: dict[str, Any]) -> list[str]:
    rows = [
        (name, duration_text(one["seconds"]), f"{one['largest_difference']:.1e}" if "largest_difference" in one else "")
        for name, one in found.items()
    ]
    return markdown_table(("two ranks on", "the whole command", "largest difference of a weight"), rows)


def _fit(found: dict[str, Any]) -> list[str]:
    rows = [
        (
            *name.split(", "),
            f"{one['difference']:.1e}",
            ", ".join(map(bytes_text, one["predicted_bytes"])),
            ", ".join(map(bytes_text, one["measured_bytes"])),
        )
        for name, one in found.items()
    ]
    heads = ("network", "mode", "difference of gradients", "predicted memory of both ranks", "measured")
    return markdown_table(heads, rows)
