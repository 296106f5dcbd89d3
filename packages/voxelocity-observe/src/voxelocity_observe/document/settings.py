"""Settings and machines as tables, and how those of two sides differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from voxelocity_observe.core.plain import plain_data
from voxelocity_observe.core.quantities import dotted, value_text
from voxelocity_observe.document.blocks import Block, Section, Table, Text, fact_table

_MACHINE_NAMES = {
    "platform": "System",
    "cpu": "Processor",
    "num_cpus": "Cores used",
    "cpu_has_fast_bfloat16": "Fast bfloat16",
    "memory_bytes": "Memory",
    "gpu": "GPU",
    "device": "Trained on",
    "python": "Python",
    "torch": "PyTorch",
    "monai": "MONAI",
    "numpy": "NumPy",
    "voxelocity": "Voxelocity",
    "commit": "Commit",
}
_MACHINE_KEYS = ("device", "gpu", "cpu", "num_cpus")
_VERSION_KEYS = ("voxelocity", "commit", "torch", "monai", "numpy", "python")
_COMMIT_LENGTH = 12


def machine_table(environment: Mapping[str, Any], *, device: str = "") -> Table:
    """The machine and the versions that matter, under names people use."""
    values = {**environment, **({"device": device} if device else {})}
    if values.get("commit"):
        values["commit"] = re.sub(r"^([0-9a-f]{12})[0-9a-f]+", r"\1", str(values["commit"]))
    known = [key for key in _MACHINE_NAMES if key in values]
    keys = [*known, *(key for key in values if key not in _MACHINE_NAMES)]
    rows = [(_MACHINE_NAMES.get(key, in_words(key)), value_text(values[key], key)) for key in keys]
    return fact_table("Machine and versions", rows)


def key_value_table(caption: str, values: Mapping[str, Any]) -> Table:
    """Nested plain values as a table of dotted keys."""
    flat = dotted(values) if values else {}
    return fact_table(caption, ((key, value_text(value, key)) for key, value in flat.items()), heads=("Key", "Value"))


def in_words(key: str) -> str:
    """A key as words: "shape_voxel" is "shape (voxel)", "file_bytes" is "file size", whose value carries its unit."""
    words = re.sub(r"_(voxel|mm)(?=\.|$)", r" (\1)", key)
    words = re.sub(r"_bytes(?=\.|$)", " size", words)
    words = re.sub(r"_s(?=\.|$)", " time", words)
    return words.replace("_", " ").replace(".", " · ")


def differing_settings(settings: Sequence[Mapping[str, Any]]) -> tuple[dict[str, tuple[Any, ...]], int]:
    """Dotted settings whose values differ, with a value per side (None where it has no such setting), and how many
    are equal on all sides.
    """
    flat = [dotted(values) if values else {} for values in settings]
    keys = dict.fromkeys(key for values in flat for key in values)
    differing = {}
    for key in keys:
        values = tuple(plain_data(side.get(key), where="settings") for side in flat)
        if any(value != values[0] for value in values[1:]):
            differing[key] = values
    return differing, len(keys) - len(differing)


def settings_before_and_after(
    before: Mapping[str, Any], after: Mapping[str, Any], *, text_of: Callable[[Any, str], str] = value_text
) -> tuple[Section, dict[str, Any]]:
    """What was set differently: a section, and plain data by dotted key."""
    differing, num_equal = differing_settings([before, after])
    rows = [(key, *(text_of(value, key) for value in values)) for key, values in differing.items()]
    plain = {key: {"before": old, "after": new} for key, (old, new) in differing.items()}
    return settings_section(rows, ("Before", "After"), num_equal), plain


def settings_section(rows: Sequence[Sequence[str]], labels: Sequence[str], num_equal: int) -> Section:
    """What was set differently.

    Args:
        rows: each setting with its value on each side and, behind them where there are more cells, the reasons.
        labels: of the sides.
        num_equal: settings that are the same on all sides.
    """
    blocks = list[Block]()
    if rows:
        heads = ["Setting", *labels, *(["Why"] if len(rows[0]) > len(labels) + 1 else [])]
        columns = frozenset(range(1, len(heads)))
        blocks.append(
            Table(caption="Settings that differ", heads=heads, rows=rows, text_columns=columns, hides_caption=True)
        )
        if num_equal:
            text = f"{num_equal} more {'setting is' if num_equal == 1 else 'settings are'} equal."
            blocks.append(Text(text=text, is_hint=True))
    elif num_equal:
        equal = "the one setting is" if num_equal == 1 else f"all {num_equal} settings are"
        blocks.append(Text(text=f"Nothing: {equal} equal."))
    else:
        blocks.append(Text(text="No settings were recorded."))
    return Section(title="What was set differently", blocks=blocks)


def different_machines(machines: Sequence[Mapping[str, object]]) -> str:
    """How the machines differ, as `observe.environment` describes them: "cpu: EPYC, Xeon; num_cpus: 8, 4".

    Empty for equal ones; a fact that one of them lacks is not a difference.
    """
    return _differing(machines, _MACHINE_KEYS)


def different_versions(machines: Sequence[Mapping[str, object]]) -> str:
    """How the versions differ that `observe.environment` lists, in the form of `different_machines`."""
    return _differing(machines, _VERSION_KEYS)


def _differing(machines: Sequence[Mapping[str, object]], keys: Sequence[str]) -> str:
    texts = []
    for key in keys:
        values = [_text(machine, key) for machine in machines if key in machine]
        if len(set(values)) > 1:
            texts.append(f"{key}: {', '.join(values)}")
    return "; ".join(texts)


def _text(machine: Mapping[str, object], key: str) -> str:
    text = value_text(machine[key], key)
    if key != "commit":
        return text
    commit, dirty, _ = text.partition("-dirty")
    return commit[:_COMMIT_LENGTH] + dirty
