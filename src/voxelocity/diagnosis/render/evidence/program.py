"""What the program itself did: where its threads were found, calls that wait, settings, network, experiments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from voxelocity.core.quantities import NOT_AVAILABLE, bytes_text, duration_text, rate_text, share_text, value_text
from voxelocity.core.time_parts import part_label
from voxelocity.diagnosis.facts import ExperimentFacts, Facts, StackFacts
from voxelocity.diagnosis.render.evidence.section import median, section
from voxelocity.report.document import Section, Table
from voxelocity.report.tables import in_words

_MAX_STACKS = 20
_MAX_CALLS = 20
_UNITS = {"step": "steps", "batch": "batches", "item": "items"}
_EXPERIMENTS = {
    "resident batch": "The step, on batches that are there",
    "loader": "The loader, without the step",
    "items": "The data set, in one thread",
    "collate": "Putting a batch together",
    "storage": "Reading the files from storage",
    "storage, page cache": "Reading the files from memory",
    "copy": "Copying a batch to the device",
}


def stacks_section(facts: Facts) -> Section | None:
    """Lines of the user's code in which the program was found, the most frequent first."""
    if not facts.stacks:
        return None
    by_part: dict[str, list[StackFacts]] = {}
    for one in facts.stacks:
        by_part.setdefault(one.part, []).append(one)
    whole = {part: sum(one.num_samples for one in found) or 1 for part, found in by_part.items()}
    ordered = sorted(facts.stacks, key=lambda one: one.num_samples, reverse=True)[:_MAX_STACKS]
    shares = [one.num_samples / whole[one.part] for one in ordered]
    rows = [
        (one.where, one.line.strip(), part_label(one.part), one.kind, one.function, share_text(share))
        for one, share in zip(ordered, shares, strict=True)
    ]
    table = Table(
        caption="Where the program was found",
        heads=("Line", "Source", "While", "Doing", "In", "Of that part"),
        rows=rows,
        text_columns=frozenset({1, 2, 3, 4}),
        shares=shares,
    )
    hint = "The innermost line of your own code, sampled many times a second."
    return section("stacks", "Lines of your code", [table], hint=hint)


def calls_section(facts: Facts) -> Section | None:
    """Calls that wait for the device, and calls that do not belong in a step."""
    tables = []
    if facts.syncs:
        ordered = sorted(facts.syncs, key=lambda one: (one.seconds, one.count), reverse=True)[:_MAX_CALLS]
        rows = [
            (
                one.call,
                one.where,
                one.line.strip(),
                f"{one.count / max(one.num_steps, 1):.3g}",
                duration_text(one.seconds),
                value_text(one.on_device),
            )
            for one in ordered
        ]
        heads = ("Call", "Where", "Source", "A step", "Sum", "On the device")
        tables.append(Table(caption="Waits for the device", heads=heads, rows=rows, text_columns=frozenset({1, 2, 5})))
    if facts.calls:
        called = sorted(facts.calls, key=lambda one: one.seconds, reverse=True)[:_MAX_CALLS]
        tables.append(
            Table(
                caption="Costly calls",
                heads=("Call", "Where", "Source", "Times", "Sum"),
                rows=[(c.call, c.where, c.line.strip(), f"{c.count:,}", duration_text(c.seconds)) for c in called],
                text_columns=frozenset({1, 2}),
            )
        )
    hint = "A tensor in the host's memory is read at once: without a GPU, such calls cost nothing."
    return section("calls", "Calls that wait", tables, hint=hint) if tables else None


def experiments_section(facts: Facts) -> Section | None:
    """Each stage alone, in the program itself."""
    if not facts.experiments:
        return None
    batch_size = next((one.batch_size for one in facts.loaders if one.is_for_training), None)
    rows = [_experiment_row(one, batch_size) for one in facts.experiments]
    heads = ("What ran alone", "Takes", "Pace", "Repeats", "Note")
    return section(
        "experiments",
        "Each stage alone",
        [Table(caption="Experiments", heads=heads, rows=rows, text_columns=frozenset({1, 2, 4}))],
        hint="Done in the program itself after the counted steps. No stage can be faster than it is alone.",
    )


def _experiment_row(one: ExperimentFacts, batch_size: int | None) -> tuple[str, ...]:
    name, seconds = _EXPERIMENTS.get(one.name, one.name), median(one.seconds)
    if not seconds:
        return name, NOT_AVAILABLE, "", "", one.note
    if one.unit == "byte":
        return name, f"{duration_text(seconds * 2**20)} a MiB", f"{bytes_text(1 / seconds)}/s", _repeats(one), one.note
    pace = f"{rate_text(1 / seconds)} {_UNITS.get(one.unit, one.unit)}/s"
    if one.unit == "item" and batch_size:
        pace += f", {rate_text(1 / seconds / batch_size)} batches/s"
    return name, f"{duration_text(seconds)} {_an(one.unit)}", pace, _repeats(one), one.note


def _an(unit: str) -> str:
    return f"{'an' if unit[:1] in 'aeiou' else 'a'} {unit}"


def _repeats(one: ExperimentFacts) -> str:
    return f"{len(one.seconds):,}"


def settings_section(facts: Facts) -> Section | None:
    """Settings, network, optimizer and what torch.compile did, as far as they were seen."""
    groups = {
        "Settings": facts.settings,
        "Network": facts.network,
        "Optimizer": facts.optimizer,
        "torch.compile": facts.compiled,
    }
    tables = [_value_table(name, asdict(record)) for name, record in groups.items() if record is not None]
    return section("settings", "Settings and network", tables) if tables else None


def _value_table(caption: str, values: dict[str, Any]) -> Table:
    """Keys with their values; what was not seen is left out."""
    rows = [
        (in_words(key), _plain_text(value, key)) for key, value in values.items() if value not in (None, "", (), {})
    ]
    return Table(caption=caption, heads=("What", "Value"), rows=[r for r in rows if r[1]], text_columns=frozenset({1}))


def _plain_text(value: Any, key: str) -> str:
    if key in ("input_shapes", "channels"):
        return _shapes_text(value, is_counted=key == "input_shapes")
    return "" if isinstance(value, list | tuple) and not value else value_text(value, key)


def _shapes_text(pairs: Sequence[Any], *, is_counted: bool) -> str:
    few = list(pairs)[:4]
    texts = [f"{' × '.join(map(str, a))} ({b:,} times)" if is_counted else f"{a} to {b}" for a, b in few]
    return ", ".join(texts) + (f" and {len(pairs) - len(few):,} more" if len(pairs) > len(few) else "")
