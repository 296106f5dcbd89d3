"""Tables of what watching costs, and of how right a diagnosis is."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tables_of.results import markdown_table, of_records, percents, range_text, source_line
from voxelocity_observe.core.quantities import factor_text

_WATCHED = {"cpu": "a CPU-bound program", "training": "a training program"}
_STATES = {
    "as_written": "works as written", "other_name": "works under our name", "gpu": "needs a GPU: not run yet",
    "impossible": "not possible",
}  # fmt: skip


@of_records("own_cost.json")
def own_cost_lines(record: dict[str, Any]) -> list[str]:
    """What spans and watchers take."""
    rows = [
        ("a span, nobody listens", range_text(record["span_off_us"]), "µs of CPU", record["span_off_us"]["n"]),
        ("a span, recorded with the host's clock", range_text(record["span_on_us"]), "µs of CPU",
         record["span_on_us"]["n"]),
    ]  # fmt: skip
    for row in record["watchers"]:
        what = f"`{row['watcher']}` around {_WATCHED[row['program']]}"
        if row["note"]:
            rows.append((what, "n/a", row["note"], 0))
            continue
        if "told_share" in row:
            rows.append((f"{what}: its own CPU time while it watches, as it reports it", percents(row["told_share"]),
                         "of one core", row["told_share"]["n"]))  # fmt: skip
        rows += [
            (f"{what}: its own CPU time, start-up included", percents(row["own_share"]), "of the program's time",
             row["own_share"]["n"]),
            (f"{what}: what it adds to the program", percents(row["wall_share"]), "of the program's time",
             row["wall_share"]["n"]),
        ]  # fmt: skip
    lines = markdown_table(("what", "median (least to most)", "", "n"), rows)
    return [*lines, "", f"Load average before: {record['load_average']:.1f}. {source_line(record)}"]


@of_records("diagnose_guides.json")
def guide_lines(record: dict[str, Any]) -> list[str]:
    """Idioms of MONAI's guides: what the diagnosis named, what it predicted, what the changed line brought."""
    return _diagnosed(record)


@of_records("guide_rows.json")
def guide_row_lines(record: dict[str, Any]) -> list[str]:
    """The statements of guides, and which of them work."""
    rows = [
        (
            group["statement"],
            len(group["rows"]),
            _STATES[group["state"]] if group["is_right"] else "DOES NOT WORK",
            group.get("because", ""),
        )
        for group in record["groups"]
    ]
    counts, commits = record["counts"], Counter(str(group["commit"] or "unknown")[:12] for group in record["groups"])
    return [
        f"Of {sum(counts.values())} statements, {counts['as_written']} work as written and {counts['other_name']} "
        f"under our name; {counts['gpu']} need a GPU and were not run, {counts['impossible']} are not possible, and "
        f"{counts['wrong']} do not work.",
        "",
        *markdown_table(("the guides have", "statements", "here", "why"), rows),
        "",
        f"Lines by commit: {', '.join(f'{number} at {commit}' for commit, number in commits.items())}. "
        f"{source_line(record)}",
    ]


@of_records("diagnose_held_out.json")
def diagnosed_lines(record: dict[str, Any]) -> list[str]:
    """Programs with a planted fault: what the diagnosis named, what it predicted, what the change brought."""
    return _diagnosed(record)


def _diagnosed(record: dict[str, Any]) -> list[str]:
    rows = []
    for script in record["scripts"]:
        first, achieved = script["first"], script.get("achieved")
        named = "nothing is wrong" if first is None or not script["expected"] else f"{first['code']} {first['title']}"
        rows.append((
            f"{script['stands_for']} (`{script['name']}`)",
            named if script["is_right"] else f"{named} (wrong)",
            "" if script["predicted"] is None else factor_text(script["predicted"]),
            "" if achieved is None else factor_text(achieved["median"]),
            "" if achieved is None else f"{achieved['low']:.2f} to {achieved['high']:.2f}",
            script.get("n", ""),
            str(script["commit"] or "unknown")[:12],
        ))  # fmt: skip
    heads = ("script", "first cause", "predicted", "achieved", "least to most", "n", "commit")
    return [*markdown_table(heads, rows), "", source_line(record)]


@of_records("diagnose_checkpoints.json")
def checkpoint_lines(record: dict[str, Any]) -> list[str]:
    """What scripts saved under a diagnosis, next to what they save without one."""
    rows = [
        (f"{script['stands_for']} (`{script['name']}`)", script["steps"], script["undone_steps"],
         f"{script['num_equal']} of {script['num_checkpoints']}",
         "as before" if script["is_last_untouched"] else "REPLACED", str(script["commit"] or "unknown")[:12])
        for script in record["scripts"]
    ]  # fmt: skip
    heads = (
        "script",
        "own steps",
        "steps of experiments",
        "equal checkpoints",
        "an older `last.pt`",
        "commit",
    )
    return [*markdown_table(heads, rows), "", source_line(record)]
