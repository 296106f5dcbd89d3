"""How data came: loaders and who made their batches, transforms, files."""

from __future__ import annotations

from collections.abc import Sequence

from voxelocity.core.quantities import bytes_text, count_text, duration_text, share_text, value_text
from voxelocity.diagnosis.facts import Facts, FetchFacts, FileFacts, LoaderFacts
from voxelocity.diagnosis.render.evidence.section import median, quantile, section
from voxelocity.report.document import Section, Table

_MAX_FILES = 10
_MAX_FETCHES = 16


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
    whole_s = sum(one.self_s for one in facts.transforms) or 1.0
    ordered = sorted(facts.transforms, key=lambda one: one.self_s, reverse=True)
    rows = [
        (
            one.name,
            one.library,
            "random" if one.is_random else "always the same",
            f"{one.num_calls:,}",
            _per(one.self_s, one.num_calls),
            _per(one.self_cpu_s, one.num_calls),
            share_text(one.self_s / whole_s),
        )
        for one in ordered
    ]
    table = Table(
        caption="Transforms, costliest first",
        heads=("Transform", "Library", "Result", "Calls", "A call", "CPU of it", "Share"),
        rows=rows,
        text_columns=frozenset({1, 2}),
        shares=[one.self_s / whole_s for one in ordered],
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
