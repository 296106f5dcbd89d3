"""Tables of whole trainings: the few figures of the README, and all races one number a cell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from tables_of.picture import bars_svg
from tables_of.results import load, markdown_table
from voxelocity_lab.bench.race.rounds import target_factor_text
from voxelocity_lab.bench.race.sides import LABELS
from voxelocity_observe.core.quantities import count_text, duration_text

_FAST, _PLAIN, _EQUAL, _OURS = (LABELS[side] for side in ("fast", "plain", "equal", "ours"))
_FULL = "Races in full"
# Its task fixes the network of all sides.
_SAME_NETWORK = ("phantoms",)
_TARGET_HEADS = ("data", "Dice", "side", "median", "least", "most", "reached", "seeds", "machine")
_TIMED_HEADS = ("data", "time", "peer", "Dice", "Voxelocity", "difference", "from", "to", "n", "of", "machine")


def readme_table() -> str:
    """The few figures of the README."""
    races = _races()
    to_target = [record for record in races if record["target_dice"]]
    timed = [record for record in races if not record["target_dice"] and _FAST in record["ours_higher_by"]]
    lines = [*(_target_lines(to_target) if to_target else []), *(_timed_lines(timed) if timed else [])]
    if races:
        lines += [
            "Every race, with intervals and machines: "
            f"[{_FULL.lower()}](docs/measured.md#{_FULL.lower().replace(' ', '-')})."
        ]
    return "\n".join(lines) or "Not measured at a clean commit yet."


def full_lines() -> list[str]:
    """All races to a Dice, and all within a fixed time, for docs/measured.md."""
    races = _races()
    if not races:
        return []
    lines = [f"## {_FULL}", "", "Times to a Dice: median, minimum and maximum of the seeds that reached it.", ""]
    lines += markdown_table(
        _TARGET_HEADS, (row for record in races if record["target_dice"] for row in _target_rows(record))
    )
    lines += [
        "",
        "Dice after a fixed time: medians, and the mean difference (Voxelocity minus the peer) with its 95 % interval. "
        "Pairs are of one seed, or of one case if there is a single seed.",
        "",
    ]
    timed = [record for record in races if not record["target_dice"]]
    return [*lines, *markdown_table(_TIMED_HEADS, (row for record in timed for row in _timed_rows(record))), ""]


def _races() -> list[dict[str, Any]]:
    """The ones in which all sides train one network first; of a data set, short trainings first."""
    return sorted(load("bench_race_*.json"), key=lambda r: (not _is_same_network(r), _data(r), r["limit_s"]))


def _is_same_network(record: dict[str, Any]) -> bool:
    settings = record["settings"]
    return bool(settings["is_equal"]) or settings["task"] in _SAME_NETWORK


def _data(record: dict[str, Any]) -> str:
    words: str = record["comparisons"][0]["title"].partition(":")[0]
    return f"{words}, same network" if _is_same_network(record) else words


def target_picture() -> str:
    """Bars of the time until a Dice is reached, for the README; "" if nothing was measured."""
    races = [record for record in _races() if record["target_dice"]]
    sides = [side for side in (_FAST, _PLAIN, _EQUAL, _OURS) if any(side in r["seconds_to_target"] for r in races)]
    groups = []
    for record in races:
        known = record["seconds_to_target"]
        seconds = [_middle(known[side]) if side in known else None for side in sides]
        bars = [None if value is None else (value, _time_text(value, record["limit_s"])) for value in seconds]
        groups.append((f"{_data(record)}: Dice {record['target_dice']:g}", bars))
    return bars_svg(groups, sides, "Time until a Dice is reached, by data set and side") if races else ""


def _target_lines(races: Sequence[dict[str, Any]]) -> list[str]:
    seeds = " or ".join(sorted({str(len(record["seeds"])) for record in races}))
    return [
        f"Time until a Dice is reached, medians of {seeds} seeds, on {_machines(races)}:",
        "",
        "![Bars of the time until a Dice is reached, by data set and side](docs/pictures/time-to-dice.svg)",
        "",
        *(line for record in races if "cold" in record for line in _factor_lines(record)),
    ]


def _factor_lines(record: dict[str, Any]) -> list[str]:
    """How many times sooner ours reached the Dice, in empty home folders and in used ones."""
    kinds = [(side, home) for side in (_EQUAL, _OURS) for home in (record["cold"], record)]
    heads = [f"{side}, {home}" for side in ("same network", "own choices") for home in ("first run", "again")]
    rows = [(peer, *(_times(home, side, peer, record["limit_s"]) for side, home in kinds)) for peer in (_FAST, _PLAIN)]
    return [
        f"Speed-up to Dice {record['target_dice']:g} on the {_data(record).partition(',')[0]}, medians of "
        f"{len(record['seeds'])} alternating rounds; a first run starts with an empty home folder:",
        "",
        *markdown_table(("faster than", *heads), rows),
        "",
    ]


def _times(outcome: dict[str, Any], side: str, peer: str, limit_s: float) -> str:
    failed = {seed for label, seed, _ in outcome.get("failures", ()) if label in (side, peer)}
    own_s, peer_s = (
        [value for value, seed in zip(outcome["seconds_to_target"][name], outcome["seeds"], strict=True)
         if seed not in failed]
        for name in (side, peer)
    )  # fmt: skip
    return target_factor_text(own_s, peer_s, limit_s, text=lambda factor: f"{factor:.1f}")


def _timed_lines(races: Sequence[dict[str, Any]]) -> list[str]:
    """What is left of the difference after the longest time; all of them are in docs/measured.md."""
    limit_s = max(record["limit_s"] for record in races)
    longest = [record for record in races if record["limit_s"] == limit_s]
    gains = [record["ours_higher_by"][_FAST]["mean"] for record in longest]
    return [
        f"After {duration_text(limit_s)} on {_machines(longest)}, Voxelocity's Dice differs from that of MONAI's fast "
        f"recipe by {min(gains):+.3f} to {max(gains):+.3f}, on {count_text(len(gains), 'data set')} "
        f"({' or '.join(sorted({_seeds(record) for record in longest}))} each).",
    ]


def _target_rows(record: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for side, seconds in record["seconds_to_target"].items():
        known = [value for value in seconds if value is not None]
        span = (duration_text(min(known)), duration_text(max(known))) if known else ("n/a", "n/a")
        middle = _time_text(_middle(seconds), record["limit_s"])
        row = (_data(record), f"{record['target_dice']:g}", side, middle, *span)
        yield (*row, str(len(known)), str(len(seconds)), _machines([record]))


def _timed_rows(record: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    ours = record["comparisons"][0]["sides"][0]
    for peer in record["comparisons"][0]["sides"][1:]:
        gain = record["ours_higher_by"][peer["name"]]
        interval = ["n/a" if gain[end] is None else f"{gain[end]:+.3f}" for end in ("low", "high")]
        yield (
            *(_data(record), duration_text(record["limit_s"]), peer["name"], f"{peer['median']:.3f}"),
            *(f"{ours['median']:.3f}", f"{gain['mean']:+.3f}", *interval, str(gain["n"])),
            *("seeds" if gain["unit"] == "training" else "cases", _machines([record])),
        )


def _middle(seconds: Sequence[float | None]) -> float:
    return median(math.inf if value is None else value for value in seconds)


def _time_text(seconds: float, limit_s: float) -> str:
    return duration_text(seconds) if math.isfinite(seconds) else f"more than {duration_text(limit_s)}"


def _seeds(record: dict[str, Any]) -> str:
    return count_text(len(record["seeds"]), "seed")


def _machines(records: Sequence[dict[str, Any]]) -> str:
    found = [(count_text(m["num_cpus"], "core"), m) for record in records for m in [record["environment"]]]
    return "; ".join(sorted({f"{cores} of {machine['cpu']}, {machine['gpu'] or 'no GPU'}" for cores, machine in found}))
