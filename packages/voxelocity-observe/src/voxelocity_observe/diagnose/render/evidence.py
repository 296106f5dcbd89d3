"""What a diagnosis rests on, as sections of tables that a terminal and a page show alike. Judges nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import fsum
from typing import Any

from voxelocity_observe.core.quantities import (
    NOT_AVAILABLE,
    bytes_text,
    count_text,
    duration_text,
    rate_text,
    share_text,
    value_text,
)
from voxelocity_observe.core.time_parts import part_label
from voxelocity_observe.diagnose.facts import PARTS, ExperimentFacts, Facts, HostFacts, Pass, ProfileFacts, Step
from voxelocity_observe.diagnose.render import wording
from voxelocity_observe.diagnose.result import Diagnosis
from voxelocity_observe.document.blocks import Section, Table, Text, fact_table, record_table
from voxelocity_observe.document.settings import in_words, machine_table

_SHAPES = ("input_shapes", "channels")
_MAX_FILES, _MAX_FETCHES, _MAX_ROWS = 10, 16, 20
_Maker = Callable[[Facts], list[Table]]
_SECTIONS: list[tuple[str, str, str, _Maker]] = []


def _section(key: str, title: str, hint: str = "") -> Callable[[_Maker], _Maker]:
    """Declares a section of the tables that a function makes, with how to read them, in the order of the page."""

    def declare(make: _Maker) -> _Maker:
        _SECTIONS.append((key, title, hint, make))
        return make

    return declare


@_section(
    "steps",
    "Steps",
    "From the end of one optimizer step to the end of the next, validation and saving left out. {own_steps}",
)
def _steps(facts: Facts) -> list[Table]:
    by_phase = {
        words: [step.seconds for step in facts.steps if step.phase == phase] for phase, words in wording.PHASES.items()
    }
    cells = {
        "Steps": lambda item: item[0],
        "Number": lambda item: f"{len(item[1]):,}",
        "Median": lambda item: duration_text(wording.quantile(item[1], 0.5)),
        "90 % within": lambda item: " to ".join(
            duration_text(wording.quantile(item[1], share)) for share in (0.05, 0.95)
        ),
        "Sum": lambda item: duration_text(fsum(item[1])),
    }
    seen = [item for item in by_phase.items() if item[1]]
    tables = [record_table("Time of a step", seen, cells)] if seen else []
    if facts.counted:
        has_device = facts.settings is not None and facts.settings.device != "cpu"
        tables.append(_parts_of_step(facts.counted, has_device=has_device))
    return tables


def _parts_of_step(steps: Sequence[Step], *, has_device: bool) -> Table:
    whole_s = sum(step.seconds for step in steps) or 1.0
    names = dict.fromkeys([*PARTS, *(name for step in steps for name in step.parts)])
    seconds = {name: [step.parts.get(name, 0.0) for step in steps] for name in names}
    on_host = {name: [step.host_parts.get(name, 0.0) for step in steps] for name in names}
    shares = {name: sum(values) / whole_s for name, values in seconds.items() if any(values)}
    cells: dict[str, Callable[[str], str]] = {
        "Part": part_label,
        "Median": lambda name: duration_text(wording.quantile(seconds[name], 0.5)),
        "95 % below": lambda name: duration_text(wording.quantile(seconds[name], 0.95)),
        "Median on the host": lambda name: duration_text(wording.quantile(on_host[name], 0.5)),
        "Share": lambda name: share_text(shares[name]),
    }
    if not has_device:
        del cells["Median on the host"]
    return record_table("Parts of a counted step", list(shares), cells, shares=list(shares.values()))


@_section("passes", "Between the steps")
def _passes(facts: Facts) -> list[Table]:
    by_place: dict[tuple[str, str], list[Pass]] = {}
    for interval in facts.passes:
        by_place.setdefault((interval.kind, interval.where), []).append(interval)
    cells: dict[str, Callable[[list[Pass]], str]] = {
        "Kind": lambda passes: passes[0].kind,
        "Where": lambda passes: passes[0].where,
        "Times": lambda passes: f"{len(passes):,}",
        "Sum": lambda passes: duration_text(fsum(interval.seconds for interval in passes)),
        "Longest": lambda passes: duration_text(max(interval.seconds for interval in passes)),
        "Forward passes": lambda passes: f"{sum(p.num_forwards for p in passes):,}".removeprefix("0"),
        "Most frequent shape": lambda passes: " × ".join(
            map(str, next((shape for interval in passes for shape, _ in interval.batch_shapes[:1]), ()))
        ),
        "Gradients": lambda passes: "recorded" if any(interval.has_gradients for interval in passes) else "",
    }
    # An epoch's start or a saved file has no batches; without validation those columns are empty.
    groups = list(by_place.values())
    kept = {head: cell for head, cell in cells.items() if any(map(cell, groups))}
    words = ("Where", "Most frequent shape", "Gradients")
    return [record_table("Passes that train nothing", groups, kept, words=words)] if groups else []


@_section(
    "experiments",
    "Each stage alone",
    "Measured in the program itself after the counted steps. No stage can be faster than alone.",
)
def _experiments(facts: Facts) -> list[Table]:
    batch_size = next((loader.batch_size for loader in facts.loaders if loader.is_for_training), None)
    rows = [_experiment_row(experiment, batch_size) for experiment in facts.experiments]
    heads = ("What ran alone", "Takes", "Pace", "Repeats", "Note")
    return [Table(caption="Experiments", heads=heads, rows=rows, text_columns=frozenset({1, 2, 4}))] if rows else []


def _experiment_row(experiment: ExperimentFacts, batch_size: int | None) -> tuple[str, ...]:
    name, seconds = wording.EXPERIMENTS.get(experiment.name, experiment.name), wording.median(experiment.seconds)
    repeats = f"{len(experiment.seconds):,}"
    if not seconds:
        return name, NOT_AVAILABLE, "", "", experiment.note
    if experiment.unit == "byte":
        return name, f"{duration_text(seconds * 2**20)} a MiB", f"{bytes_text(1 / seconds)}/s", repeats, experiment.note
    takes = f"{duration_text(seconds)} {'an' if experiment.unit[:1] in 'aeiou' else 'a'} {experiment.unit}"
    pace = f"{rate_text(1 / seconds)} {wording.UNITS.get(experiment.unit, experiment.unit)}/s"
    if experiment.unit == "item" and batch_size:
        pace += f", {rate_text(1 / seconds / batch_size)} batches/s"
    return name, takes, pace, repeats, experiment.note


@_section(
    "loaders",
    "Loaders and workers",
    "CPU time well below the time of an item means that its process waited: for a disk, or for a core.",
)
def _loaders(facts: Facts) -> list[Table]:
    tables = []
    if facts.loaders:
        # A column per loader; lines that are empty for all of them are left out.
        lines = {
            "Iterated at": [loader.where for loader in facts.loaders],
            "For": ["training" if loader.is_for_training else "other" for loader in facts.loaders],
            "Kind": [loader.kind for loader in facts.loaders],
            "Data set": [loader.dataset for loader in facts.loaders],
            "num_workers": [str(loader.num_workers) for loader in facts.loaders],
            "batch_size": [str(loader.batch_size or "") for loader in facts.loaders],
            "pin_memory": [value_text(loader.pin_memory) for loader in facts.loaders],
            "persistent_workers": [value_text(loader.persistent_workers) for loader in facts.loaders],
            "prefetch_factor": [str(loader.prefetch_factor or "") for loader in facts.loaders],
            "Workers start by": [loader.start_method for loader in facts.loaders],
            "collate_fn": [loader.collate for loader in facts.loaders],
            "Batches an epoch": [
                "" if loader.num_batches is None else f"{loader.num_batches:,}" for loader in facts.loaders
            ],
            "Epochs seen": [f"{loader.num_epochs:,}" if loader.num_epochs else "" for loader in facts.loaders],
        }
        rows = [(name, *values) for name, values in lines.items() if any(values)]
        heads = ("What", *(f"Loader {number}" for number in range(1, len(facts.loaders) + 1)))
        tables.append(Table(caption="Loaders", heads=heads, rows=rows, text_columns=frozenset(range(1, len(heads)))))
    if facts.fetches:
        tables.append(_fetches(facts))
    return tables


def _fetches(facts: Facts) -> Table:
    """Who made batches; loaders are numbered as in the table of loaders."""
    numbers = {loader.key: number for number, loader in enumerate(facts.loaders, start=1)}

    def maker(fetch: Any) -> str:
        name = "the program itself" if fetch.worker < 0 else f"worker {fetch.worker}"
        return f"loader {numbers[fetch.key]}, {name}" if fetch.key in numbers else name

    cells = {
        "Made by": maker,
        "Batches": lambda fetch: f"{fetch.num_batches:,}",
        "An item": lambda fetch: _per(fetch.item_s, fetch.num_items),
        "CPU of it": lambda fetch: _per(fetch.item_cpu_s, fetch.num_items),
        "Collating": lambda fetch: _per(fetch.collate_s, fetch.num_batches),
        "A batch": lambda fetch: duration_text(wording.median(list(fetch.batch_s))),
        "95 % below": lambda fetch: duration_text(wording.quantile(fetch.batch_s, 0.95) if fetch.batch_s else None),
        "Size": lambda fetch: bytes_text(fetch.batch_bytes),
    }
    few = sorted(facts.fetches, key=lambda fetch: (fetch.key, fetch.worker))[:_MAX_FETCHES]
    more = f" (the first {_MAX_FETCHES})" if len(facts.fetches) > _MAX_FETCHES else ""
    return record_table(f"Batches by loader and worker{more}", few, cells)


def _per(seconds: float, count: int) -> str:
    return duration_text(seconds / count if count else None)


@_section(
    "transforms",
    "Transforms",
    "Each transform's own seconds, without those of the transforms it calls. "
    "What comes before the first random one can be cached.",
)
def _transforms(facts: Facts) -> list[Table]:
    whole_s = sum(transform.self_s for transform in facts.transforms) or 1.0
    ordered = sorted(facts.transforms, key=lambda transform: transform.self_s, reverse=True)
    cells = {
        "Transform": lambda transform: transform.name,
        "Library": lambda transform: transform.library,
        "Result": lambda transform: "random" if transform.is_random else "always the same",
        "Calls": lambda transform: f"{transform.num_calls:,}",
        "A call": lambda transform: _per(transform.self_s, transform.num_calls),
        "CPU of it": lambda transform: _per(transform.self_cpu_s, transform.num_calls),
        "Share": lambda transform: share_text(transform.self_s / whole_s),
    }
    shares = [transform.self_s / whole_s for transform in ordered]
    table = record_table("Transforms, costliest first", ordered, cells, words=("Library", "Result"), shares=shares)
    return [table] if ordered else []


@_section("stacks", "Lines of your code", "The innermost line of your own code, sampled many times a second.")
def _stacks(facts: Facts) -> list[Table]:
    whole: Counter[str] = Counter()
    for stack in facts.stacks:
        whole[stack.part] += stack.num_samples
    ordered = sorted(facts.stacks, key=lambda stack: stack.num_samples, reverse=True)[:_MAX_ROWS]
    cells = {
        "Line": lambda stack: stack.where,
        "Source": lambda stack: stack.line.strip(),
        "While": lambda stack: part_label(stack.part),
        "Doing": lambda stack: stack.kind,
        "In": lambda stack: stack.function,
        "Of that part": lambda stack: share_text(stack.num_samples / max(whole[stack.part], 1)),
    }
    words = ("Source", "While", "Doing", "In")
    shares = [stack.num_samples / max(whole[stack.part], 1) for stack in ordered]
    return (
        [record_table("Where the program was sampled", ordered, cells, words=words, shares=shares)] if ordered else []
    )


@_section("files", "Files")
def _files(facts: Facts) -> list[Table]:
    files = facts.files
    if files is None or not files.num_opens:
        return []
    kinds = sorted(files.kinds.items(), key=lambda pair: pair[1], reverse=True)
    rows = [
        ("Opened", count_text(files.num_opens, "time")),
        ("Different files", f"{files.num_files:,}"),
        ("Size, counted at each opening", bytes_text(files.read_bytes)),
        *((f"Opened {kind or 'without a suffix'}", count_text(count, "time")) for kind, count in kinds[:_MAX_FILES]),
    ]
    largest = Table(caption="The largest", heads=("File",), rows=[(path,) for path in files.largest[:_MAX_FILES]])
    read = Table(caption="Files read", heads=("What", "Value"), rows=rows)
    return [read, largest] if largest.rows else [read]


@_section(
    "calls", "Calls that wait", "A tensor in host memory is read immediately: without a GPU, such calls cost no time."
)
def _calls(facts: Facts) -> list[Table]:
    syncs = sorted(facts.syncs, key=lambda sync: (sync.seconds, sync.count), reverse=True)[:_MAX_ROWS]
    calls = sorted(facts.calls, key=lambda call: call.seconds, reverse=True)[:_MAX_ROWS]
    place: dict[str, Callable[[Any], str]] = {
        "Call": lambda call: call.call,
        "Where": lambda call: call.where,
        "Source": lambda call: call.line.strip(),
    }
    waits = {
        "A step": lambda sync: f"{sync.count / max(sync.num_steps, 1):.3g}",
        "Sum": lambda sync: duration_text(sync.seconds),
        "On the device": lambda sync: value_text(sync.on_device),
    }
    costs = {"Times": lambda call: f"{call.count:,}", "Sum": lambda call: duration_text(call.seconds)}
    words = ("Where", "Source", "On the device")
    tables = [
        record_table("Waits for the device", syncs, place | waits, words=words),
        record_table("Costly calls", calls, place | costs, words=words),
    ]
    return [table for table in tables if table.rows]


@_section(
    "profile",
    "Kernels and operators",
    "Of {profiled} steps under torch.profiler, which slows them down; shares matter here, not seconds.",
)
def _profile(facts: Facts) -> list[Table]:
    profile = facts.profile
    if profile is None:
        return []
    tables = [_operators(profile)] if profile.operators else []
    if profile.gpu_busy_ns:
        whole = profile.wall_ns or 1
        rows = [
            ("Device busy", share_text(profile.gpu_busy_ns / whole)),
            ("Device idle while the host prepares its work", share_text(profile.launch_bound_ns / whole)),
            ("Kernel time on tensor cores", share_text(profile.tensor_core_share)),
        ]
        groups = {
            "Group": lambda item: item[0],
            "Number": lambda item: f"{item[1].number:,}",
            "CPU time": lambda item: duration_text(item[1].cpu_ns / 1e9),
            "GPU time": lambda item: duration_text(item[1].gpu_ns / 1e9),
        }
        device = Table(caption="The device", heads=("What", "Share"), rows=rows)
        return [device, record_table("Kernel groups", list(profile.groups.items()), groups), *tables]
    return tables


def _operators(profile: ProfileFacts) -> Table:
    field = "gpu_ns" if any(operator.gpu_ns for operator in profile.operators) else "cpu_ns"
    whole = sum(getattr(operator, field) for operator in profile.operators) or 1
    cells = {
        "Operator": lambda operator: operator.name,
        "Shape": lambda operator: operator.shape,
        "Number": lambda operator: f"{operator.number:,}",
        "CPU time": lambda operator: duration_text(operator.cpu_ns / 1e9),
        "GPU time": lambda operator: duration_text(operator.gpu_ns / 1e9),
        "Share": lambda operator: share_text(getattr(operator, field) / whole),
    }
    if field == "cpu_ns":
        del cells["GPU time"]
    few = profile.operators[:_MAX_ROWS]
    shares = [getattr(operator, field) / whole for operator in few]
    return record_table("Top operators, without what they call", few, cells, words=("Shape",), shares=shares)


@_section("settings", "Settings and network")
def _settings(facts: Facts) -> list[Table]:
    groups = {
        "Settings": facts.settings,
        "Network": facts.network,
        "Optimizer": facts.optimizer,
        "torch.compile": facts.compiled,
    }
    return [_value_table(name, asdict(record)) for name, record in groups.items() if record is not None]


def _value_table(caption: str, values: dict[str, Any]) -> Table:
    """Keys with their values; what was not seen is left out."""
    known = {key: value for key, value in values.items() if value not in (None, "", (), [], {})}
    shapes = {key: wording.shapes_text(known[key], is_counted=key == "input_shapes") for key in _SHAPES if key in known}
    return fact_table(caption, ((in_words(key), shapes.get(key) or value_text(known[key], key)) for key in known))


@_section("host", "The machine during the run")
def _host(facts: Facts) -> list[Table]:
    host = facts.host
    if host is None:
        return []
    of_limit = f" of {bytes_text(host.memory_limit_bytes)}" if host.memory_limit_bytes else ""
    of_shm = f" of {bytes_text(host.shm_size_bytes)}" if host.shm_size_bytes else ""
    rows = [
        ("Cores it may use", f"{host.num_cpus} of {host.num_machine_cpus or host.num_cpus}"),
        ("Of these in use by the program", share_text(host.cpu_share)),
        ("In use by others", f"{host.others_share:.2g} cores"),
        ("Throttled by the control group", share_text(host.throttled_share)),
        ("Processes and threads, at most", f"{host.num_processes:,} and {host.num_threads:,}"),
        *([("Memory, at most", f"{bytes_text(host.memory_bytes)}{of_limit}")] if host.memory_bytes else []),
        ("Swapped in and out", f"{bytes_text(host.swap_in_bytes)} and {bytes_text(host.swap_out_bytes)}"),
        ("Pages read from disk", f"{host.major_faults_per_s:.3g} a second"),
        ("/dev/shm, at most", f"{bytes_text(host.shm_used_bytes)}{of_shm}"),
        ("Read from disks", f"{bytes_text(host.disk_read_bytes_per_s)}/s"),
        *([("File system of the data", host.file_system)] if host.file_system else []),
    ]
    return [fact_table("The host", rows), *([_gpus(host)] if host.gpu_busy else [])]


def _gpus(host: HostFacts) -> Table:
    used, whole = list(host.gpu_memory_bytes), list(host.gpu_memory_total_bytes)
    rows = []
    for index, busy in enumerate(host.gpu_busy):
        memory = bytes_text(used[index]) if index < len(used) else ""
        total = f" of {bytes_text(whole[index])}" if index < len(whole) and whole[index] else ""
        rows.append((f"GPU {index}", share_text(busy), f"{memory}{total}"))
    reasons = ", ".join(f"{reason} ({share_text(share)})" for reason, share in host.gpu_throttle_reasons.items())
    rows += [("Clocks held back", reasons, "")] if reasons else []
    rows += [("Other programs on it", f"{host.gpu_other_processes:,}", "")] if host.gpu_other_processes else []
    heads = ("Device", "A kernel running", "Memory, at most")
    return Table(caption="The GPUs", heads=heads, rows=rows, text_columns=frozenset({2}))


@_section("environment", "Machine and software")
def _environment(facts: Facts) -> list[Table]:
    versions = fact_table("Packages the program imported", facts.main.versions.items(), heads=("Package", "Version"))
    return [*([machine_table(facts.environment)] if facts.environment else []), *([versions] if versions.rows else [])]


def evidence_sections(diagnosis: Diagnosis) -> list[Section]:
    """The sections that have anything to show."""
    facts = diagnosis.facts
    profiled = facts.profile.num_steps if facts.profile is not None else 0
    sections = []
    for key, title, hint, make in _SECTIONS:
        if tables := make(facts):
            text = hint.format(own_steps=wording.own_steps_text(facts), profiled=profiled)
            hints = [Text(text=text, is_hint=True)] if text else []
            sections.append(Section(key=key, title=title, blocks=[*hints, *tables]))
    return sections
