"""Evidence on the program and what it ran on: lines, calls, experiments, kernels, settings, machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from voxelocity_observe.core.quantities import (
    NOT_AVAILABLE,
    bytes_text,
    duration_text,
    rate_text,
    share_text,
    value_text,
)
from voxelocity_observe.core.time_parts import part_label
from voxelocity_observe.diagnose.facts import ExperimentFacts, Facts, HostFacts, ProfileFacts, StackFacts
from voxelocity_observe.diagnose.render.wording import median
from voxelocity_observe.document.blocks import Section, Table, Text, fact_table
from voxelocity_observe.document.settings import in_words, machine_table

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

_MAX_OPERATORS = 20


def section(key: str, title: str, tables: Sequence[Table], *, hint: str = "") -> Section:
    """Tables that answer one question, with how to read them."""
    return Section(key=key, title=title, blocks=[*([Text(text=hint, is_hint=True)] if hint else []), *tables])


def stacks_section(facts: Facts) -> Section | None:
    """Lines of the user's code in which the program was found, the most frequent first."""
    if not facts.stacks:
        return None
    by_part: dict[str, list[StackFacts]] = {}
    for stack in facts.stacks:
        by_part.setdefault(stack.part, []).append(stack)
    whole = {part: sum(stack.num_samples for stack in found) or 1 for part, found in by_part.items()}
    ordered = sorted(facts.stacks, key=lambda stack: stack.num_samples, reverse=True)[:_MAX_STACKS]
    shares = [stack.num_samples / whole[stack.part] for stack in ordered]
    rows = [
        (stack.where, stack.line.strip(), part_label(stack.part), stack.kind, stack.function, share_text(share))
        for stack, share in zip(ordered, shares, strict=True)
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
        ordered = sorted(facts.syncs, key=lambda sync: (sync.seconds, sync.count), reverse=True)[:_MAX_CALLS]
        rows = [
            (
                sync.call,
                sync.where,
                sync.line.strip(),
                f"{sync.count / max(sync.num_steps, 1):.3g}",
                duration_text(sync.seconds),
                value_text(sync.on_device),
            )
            for sync in ordered
        ]
        heads = ("Call", "Where", "Source", "A step", "Sum", "On the device")
        tables.append(Table(caption="Waits for the device", heads=heads, rows=rows, text_columns=frozenset({1, 2, 5})))
    if facts.calls:
        called = sorted(facts.calls, key=lambda call: call.seconds, reverse=True)[:_MAX_CALLS]
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
    batch_size = next((loader.batch_size for loader in facts.loaders if loader.is_for_training), None)
    rows = [_experiment_row(experiment, batch_size) for experiment in facts.experiments]
    heads = ("What ran alone", "Takes", "Pace", "Repeats", "Note")
    return section(
        "experiments",
        "Each stage alone",
        [Table(caption="Experiments", heads=heads, rows=rows, text_columns=frozenset({1, 2, 4}))],
        hint="Done in the program itself after the counted steps. No stage can be faster than it is alone.",
    )


def _experiment_row(one: ExperimentFacts, batch_size: int | None) -> tuple[str, ...]:
    name, seconds = _EXPERIMENTS.get(one.name, one.name), median(one.seconds)
    repeats = f"{len(one.seconds):,}"
    if not seconds:
        return name, NOT_AVAILABLE, "", "", one.note
    if one.unit == "byte":
        return name, f"{duration_text(seconds * 2**20)} a MiB", f"{bytes_text(1 / seconds)}/s", repeats, one.note
    pace = f"{rate_text(1 / seconds)} {_UNITS.get(one.unit, one.unit)}/s"
    if one.unit == "item" and batch_size:
        pace += f", {rate_text(1 / seconds / batch_size)} batches/s"
    return (
        name,
        f"{duration_text(seconds)} {'an' if one.unit[:1] in 'aeiou' else 'a'} {one.unit}",
        pace,
        repeats,
        one.note,
    )


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
    known = {key: _plain_text(value, key) for key, value in values.items() if value not in (None, "", (), {})}
    return fact_table(caption, ((in_words(key), text) for key, text in known.items() if text))


def _plain_text(value: Any, key: str) -> str:
    if key in ("input_shapes", "channels"):
        return _shapes_text(value, is_counted=key == "input_shapes")
    return "" if isinstance(value, list | tuple) and not value else value_text(value, key)


def _shapes_text(pairs: Sequence[Any], *, is_counted: bool) -> str:
    few = list(pairs)[:4]
    texts = [f"{' × '.join(map(str, a))} ({b:,} times)" if is_counted else f"{a} to {b}" for a, b in few]
    return ", ".join(texts) + (f" and {len(pairs) - len(few):,} more" if len(pairs) > len(few) else "")


def profile_section(facts: Facts) -> Section | None:
    """What torch.profiler saw; kernels where there is a device."""
    profile = facts.profile
    if profile is None:
        return None
    tables = [_device_table(profile), _group_table(profile)] if profile.gpu_busy_ns else []
    if profile.operators:
        tables.append(_operator_table(profile))
    hint = f"Of {profile.num_steps} steps under torch.profiler, which slows them down; shares matter here, not seconds."
    return section("profile", "Kernels and operators", tables, hint=hint) if tables else None


def _device_table(profile: ProfileFacts) -> Table:
    whole = profile.wall_ns or 1
    rows = [
        ("Device busy", share_text(profile.gpu_busy_ns / whole)),
        ("Device idle while the host prepares its work", share_text(profile.launch_bound_ns / whole)),
        ("Kernel time on tensor cores", share_text(profile.tensor_core_share)),
    ]
    return Table(caption="The device", heads=("What", "Share"), rows=rows)


def _group_table(profile: ProfileFacts) -> Table:
    rows = [
        (name, f"{group.number:,}", duration_text(group.cpu_ns / 1e9), duration_text(group.gpu_ns / 1e9))
        for name, group in profile.groups.items()
    ]
    return Table(caption="Kernel groups", heads=("Group", "Number", "CPU time", "GPU time"), rows=rows)


def _operator_table(profile: ProfileFacts) -> Table:
    has_gpu = any(operator.gpu_ns for operator in profile.operators)
    costs = [operator.gpu_ns if has_gpu else operator.cpu_ns for operator in profile.operators]
    whole = sum(costs) or 1
    rows = [
        (
            operator.name,
            operator.shape,
            f"{operator.number:,}",
            duration_text(operator.cpu_ns / 1e9),
            *([duration_text(operator.gpu_ns / 1e9)] if has_gpu else []),
            share_text(cost / whole),
        )
        for operator, cost in zip(profile.operators[:_MAX_OPERATORS], costs, strict=False)
    ]
    heads = ("Operator", "Shape", "Number", "CPU time", *(["GPU time"] if has_gpu else []), "Share")
    return Table(
        caption="Top operators, without what they call",
        heads=heads,
        rows=rows,
        text_columns=frozenset({1}),
        shares=[cost / whole for cost in costs[:_MAX_OPERATORS]],
    )


def host_section(facts: Facts) -> Section | None:
    """Cores, memory, disk and devices while the program ran."""
    if facts.host is None:
        return None
    tables = [_host_table(facts.host)]
    if facts.host.gpu_busy:
        tables.append(_gpu_table(facts.host))
    return section("host", "The machine during the run", tables)


def _host_table(host: HostFacts) -> Table:
    of_limit = f" of {bytes_text(host.memory_limit_bytes)}" if host.memory_limit_bytes else ""
    of_shm = f" of {bytes_text(host.shm_size_bytes)}" if host.shm_size_bytes else ""
    rows = [
        ("Cores it may use", f"{host.num_cpus} of {host.num_machine_cpus or host.num_cpus}"),
        ("Of these in use by the program", share_text(host.cpu_share)),
        ("In use by others", f"{host.others_share:.2g} cores"),
        ("Held back by the control group", share_text(host.throttled_share)),
        ("Processes and threads, at most", f"{host.num_processes:,} and {host.num_threads:,}"),
        *([("Memory, at most", f"{bytes_text(host.memory_bytes)}{of_limit}")] if host.memory_bytes else []),
        ("Swapped in and out", f"{bytes_text(host.swap_in_bytes)} and {bytes_text(host.swap_out_bytes)}"),
        ("Pages read from disk", f"{host.major_faults_per_s:.3g} a second"),
        ("/dev/shm, at most", f"{bytes_text(host.shm_used_bytes)}{of_shm}"),
        ("Read from disks", f"{bytes_text(host.disk_read_bytes_per_s)}/s"),
        *([("File system of the data", host.file_system)] if host.file_system else []),
    ]
    return fact_table("The host", rows)


def _gpu_table(host: HostFacts) -> Table:
    used, whole = list(host.gpu_memory_bytes), list(host.gpu_memory_total_bytes)
    rows = []
    for index, busy in enumerate(host.gpu_busy):
        memory = bytes_text(used[index]) if index < len(used) else ""
        total = f" of {bytes_text(whole[index])}" if index < len(whole) and whole[index] else ""
        rows.append((f"GPU {index}", share_text(busy), f"{memory}{total}"))
    reasons = ", ".join(f"{reason} ({share_text(share)})" for reason, share in host.gpu_throttle_reasons.items())
    if reasons:
        rows.append(("Clocks held back", reasons, ""))
    if host.gpu_other_processes:
        rows.append(("Other programs on it", f"{host.gpu_other_processes:,}", ""))
    heads = ("Device", "A kernel running", "Memory, at most")
    return Table(caption="The GPUs", heads=heads, rows=rows, text_columns=frozenset({2}))


def environment_section(facts: Facts) -> Section | None:
    """The machine, and versions of its software and of the packages the program imported."""
    tables = [machine_table(facts.environment)] if facts.environment else []
    if versions := facts.main.versions:
        tables.append(fact_table("Packages the program imported", versions.items(), heads=("Package", "Version")))
    return section("environment", "What it ran on", tables) if tables else None
