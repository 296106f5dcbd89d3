"""What a diagnosis rests on, as sections of tables that a terminal and a page show alike. Judges nothing."""

from __future__ import annotations

from collections.abc import Sequence

from voxelocity_observe.core.quantities import bytes_text, count_text, duration_text, share_text, value_text
from voxelocity_observe.core.time_parts import part_label
from voxelocity_observe.diagnose.facts import PARTS, Facts, FetchFacts, FileFacts, LoaderFacts, Pass, Step
from voxelocity_observe.diagnose.render.evidence_program import (
    calls_section,
    environment_section,
    experiments_section,
    host_section,
    profile_section,
    section,
    settings_section,
    stacks_section,
)
from voxelocity_observe.diagnose.render.wording import median, own_steps_text, quantile
from voxelocity_observe.diagnose.result import Diagnosis
from voxelocity_observe.document.blocks import Section, Table

_PHASES = {
    "warm-up": "not counted: warm-up",
    "watched": "counted",
    "profiled": "slowed down by the profiler",
    "resident": "on batches that were there",
    "unchanged": "unchanged, between these",
    "refilled": "not counted: on batches made ahead",
}

_MAX_FILES = 10
_MAX_FETCHES = 16


def steps_section(facts: Facts) -> Section | None:
    """Seconds of a step, and of its parts as device and host saw them."""
    if not facts.steps:
        return None
    tables = [_by_phase(facts.steps)]
    if facts.counted:
        tables.append(_by_part(facts.counted, has_device=facts.settings is not None and facts.settings.device != "cpu"))
    return section(
        "steps",
        "Steps",
        tables,
        hint="From the end of one optimizer step to the end of the next, validation and saving left out. "
        + own_steps_text(facts),
    )


def _by_phase(steps: Sequence[Step]) -> Table:
    rows = []
    for phase, words in _PHASES.items():
        seconds = [step.seconds for step in steps if step.phase == phase]
        if seconds:
            low, middle, high = (duration_text(quantile(seconds, share)) for share in (0.05, 0.5, 0.95))
            rows.append((words, f"{len(seconds):,}", middle, f"{low} to {high}", duration_text(sum(seconds))))
    heads = ("Steps", "Number", "Median", "90 % within", "Sum")
    return Table(caption="Time of a step", heads=heads, rows=rows)


def _by_part(steps: Sequence[Step], *, has_device: bool) -> Table:
    whole_s = sum(step.seconds for step in steps) or 1.0
    names = dict.fromkeys([*PARTS, *(name for step in steps for name in step.parts)])
    rows, shares = [], []
    for name in names:
        seconds = [step.parts.get(name, 0.0) for step in steps]
        if not any(seconds):
            continue
        share = sum(seconds) / whole_s
        row = [part_label(name), duration_text(quantile(seconds, 0.5)), duration_text(quantile(seconds, 0.95))]
        if has_device:
            row.append(duration_text(quantile([step.host_parts.get(name, 0.0) for step in steps], 0.5)))
        rows.append([*row, share_text(share)])
        shares.append(share)
    heads = ["Part", "Median", "95 % below", *(["Median on the host"] if has_device else []), "Share"]
    return Table(caption="Parts of a counted step", heads=heads, rows=rows, shares=shares)


def passes_section(facts: Facts) -> Section | None:
    """Validation, saving and epoch starts, summed by kind and place."""
    if not facts.passes:
        return None
    places = dict.fromkeys((interval.kind, interval.where) for interval in facts.passes)
    rows = [
        _pass_row([interval for interval in facts.passes if (interval.kind, interval.where) == place])
        for place in places
    ]
    heads = ("Kind", "Where", "Times", "Sum", "Longest", "Forward passes", "Most frequent shape", "Gradients")
    # An epoch's start or a saved file has no batches; without validation those columns are empty.
    kept = [column for column in range(len(heads)) if any(row[column] for row in rows)]
    words = ("Where", "Most frequent shape", "Gradients")
    table = Table(
        caption="Passes that train nothing",
        heads=[heads[column] for column in kept],
        rows=[tuple(row[column] for column in kept) for row in rows],
        text_columns=frozenset(place for place, column in enumerate(kept) if heads[column] in words),
    )
    return section("passes", "Between the steps", [table])


def _pass_row(passes: Sequence[Pass]) -> tuple[str, ...]:
    first = passes[0]
    num_forwards = sum(interval.num_forwards for interval in passes)
    shapes = [shape for interval in passes for shape, _ in interval.batch_shapes[:1]]
    return (
        first.kind,
        first.where,
        f"{len(passes):,}",
        duration_text(sum(interval.seconds for interval in passes)),
        duration_text(max(interval.seconds for interval in passes)),
        f"{num_forwards:,}" if num_forwards else "",
        " × ".join(map(str, shapes[0])) if shapes else "",
        "recorded" if any(interval.has_gradients for interval in passes) else "",
    )


def loaders_section(facts: Facts) -> Section | None:
    """Loaders with their arguments, and the processes that made their batches."""
    if not facts.loaders and not facts.fetches:
        return None
    tables = [_loader_table(facts.loaders)] if facts.loaders else []
    if facts.fetches:
        tables.append(_fetch_table(facts.fetches, [loader.key for loader in facts.loaders]))
    return section(
        "loaders",
        "Loaders and workers",
        tables,
        hint="CPU time well below the time of an item means that its process waited: for a disk, or for a core.",
    )


def _loader_table(loaders: Sequence[LoaderFacts]) -> Table:
    """A column per loader; lines that are empty for all of them are left out."""
    lines = {
        "Iterated at": [loader.where for loader in loaders],
        "For": ["training" if loader.is_for_training else "other" for loader in loaders],
        "Kind": [loader.kind for loader in loaders],
        "Data set": [loader.dataset for loader in loaders],
        "num_workers": [str(loader.num_workers) for loader in loaders],
        "batch_size": ["" if loader.batch_size is None else str(loader.batch_size) for loader in loaders],
        "pin_memory": [value_text(loader.pin_memory) for loader in loaders],
        "persistent_workers": [value_text(loader.persistent_workers) for loader in loaders],
        "prefetch_factor": [
            "" if loader.prefetch_factor is None else str(loader.prefetch_factor) for loader in loaders
        ],
        "Workers start by": [loader.start_method for loader in loaders],
        "collate_fn": [loader.collate for loader in loaders],
        "Batches an epoch": ["" if loader.num_batches is None else f"{loader.num_batches:,}" for loader in loaders],
        "Epochs seen": [f"{loader.num_epochs:,}" if loader.num_epochs else "" for loader in loaders],
    }
    rows = [(name, *values) for name, values in lines.items() if any(values)]
    heads = ("What", *(f"Loader {number}" for number in range(1, len(loaders) + 1)))
    return Table(caption="Loaders", heads=heads, rows=rows, text_columns=frozenset(range(1, len(heads))))


def _fetch_table(fetches: Sequence[FetchFacts], keys: Sequence[int]) -> Table:
    """Who made batches; loaders are numbered as in the table of loaders."""
    numbers = {key: number for number, key in enumerate(keys, start=1)}
    rows = []
    for fetch in sorted(fetches, key=lambda fetch: (fetch.key, fetch.worker))[:_MAX_FETCHES]:
        maker = "the program itself" if fetch.worker < 0 else f"worker {fetch.worker}"
        batch = list(fetch.batch_s)
        rows.append(
            (
                f"loader {numbers[fetch.key]}, {maker}" if fetch.key in numbers else maker,
                f"{fetch.num_batches:,}",
                _per(fetch.item_s, fetch.num_items),
                _per(fetch.item_cpu_s, fetch.num_items),
                _per(fetch.collate_s, fetch.num_batches),
                duration_text(median(batch)),
                duration_text(quantile(batch, 0.95) if batch else None),
                bytes_text(fetch.batch_bytes),
            )
        )
    heads = ("Made by", "Batches", "An item", "CPU of it", "Collating", "A batch", "95 % below", "Size")
    caption = "Who made the batches" + (f" (the first {_MAX_FETCHES})" if len(fetches) > _MAX_FETCHES else "")
    return Table(caption=caption, heads=heads, rows=rows)


def transforms_section(facts: Facts) -> Section | None:
    """Transforms by name, costliest first."""
    if not facts.transforms:
        return None
    whole_s = sum(transform.self_s for transform in facts.transforms) or 1.0
    ordered = sorted(facts.transforms, key=lambda transform: transform.self_s, reverse=True)
    rows = [
        (
            sync.name,
            sync.library,
            "random" if sync.is_random else "always the same",
            f"{sync.num_calls:,}",
            _per(sync.self_s, sync.num_calls),
            _per(sync.self_cpu_s, sync.num_calls),
            share_text(sync.self_s / whole_s),
        )
        for sync in ordered
    ]
    table = Table(
        caption="Transforms, costliest first",
        heads=("Transform", "Library", "Result", "Calls", "A call", "CPU of it", "Share"),
        rows=rows,
        text_columns=frozenset({1, 2}),
        shares=[transform.self_s / whole_s for transform in ordered],
    )
    hint = (
        "Each transform's own seconds, without those of the transforms it calls. "
        "What comes before the first random one can be cached."
    )
    return section("transforms", "Transforms", [table], hint=hint)


def files_section(facts: Facts) -> Section | None:
    """Files the program opened for reading."""
    if facts.files is None or not facts.files.num_opens:
        return None
    return section("files", "Files", [_file_table(facts.files), *_largest(facts.files)])


def _file_table(files: FileFacts) -> Table:
    kinds = sorted(files.kinds.items(), key=lambda pair: pair[1], reverse=True)
    rows = [
        ("Opened", count_text(files.num_opens, "time")),
        ("Different files", f"{files.num_files:,}"),
        ("Size, counted at each opening", bytes_text(files.read_bytes)),
        *((f"Opened {kind or 'without a suffix'}", count_text(count, "time")) for kind, count in kinds[:_MAX_FILES]),
    ]
    return Table(caption="Files read", heads=("What", "Value"), rows=rows)


def _largest(files: FileFacts) -> list[Table]:
    rows = [(path,) for path in files.largest[:_MAX_FILES]]
    return [Table(caption="The largest", heads=("File",), rows=rows)] if rows else []


def _per(seconds: float, count: int) -> str:
    return duration_text(seconds / count if count else None)


_MAKERS = (
    steps_section,
    passes_section,
    experiments_section,
    loaders_section,
    transforms_section,
    stacks_section,
    files_section,
    calls_section,
    profile_section,
    settings_section,
    host_section,
    environment_section,
)


def evidence_sections(diagnosis: Diagnosis) -> list[Section]:
    """The sections that have anything to show."""
    sections = (make(diagnosis.facts) for make in _MAKERS)
    return [section for section in sections if section is not None]
