"""What was understood of an undescribed folder, as a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from voxelocity_observe.core.quantities import count_text
from voxelocity_observe.document.blocks import Document, Section, Table

_MOST_ROWS = 10


def found_document(
    channels: Sequence[str],
    labels: Mapping[int, str],
    cases: Sequence[tuple[str, Sequence[str], str]],
    left_out: Sequence[tuple[str, str]],
    guesses: Sequence[str],
) -> Document:
    """Cases, classes and what was left out, each as a table of its first rows.

    Args:
        channels: their names.
        labels: class names by file value.
        cases: id, images and label of each; an empty label belongs to a case to predict.
        left_out: what, and why.
        guesses: sentences about what should be checked.
    """
    num_labeled = sum(bool(label) for _, _, label in cases)
    heads = ["case", *(channels if len(channels) > 1 else ["image"]), "label"]
    sections = [
        Section(
            title="Cases",
            blocks=[_table(heads, [[case, *images, label or "none"] for case, images, label in cases])],
        ),
        Section(
            title="Classes",
            blocks=[
                _table(["value", "class"], [[str(value), name] for value, name in labels.items()], most=len(labels))
            ],
        ),
    ]
    if left_out:
        sections.append(Section(title="Left out", blocks=[_table(["what", "why"], [list(pair) for pair in left_out])]))
    return Document(
        kind="data set",
        title="Data set",
        verdict=f"{count_text(len(cases), 'case')}, {num_labeled} with a label; {', '.join(channels)}",
        notices=list(guesses),
        sections=sections,
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, most: int = _MOST_ROWS) -> Table:
    shown = [list(row) for row in rows[:most]]
    if len(rows) > most:
        shown.append([f"and {len(rows) - most} more", *[""] * (len(heads) - 1)])
    return Table(
        caption=heads[0], heads=heads, rows=shown, text_columns=frozenset(range(len(heads))), hides_caption=True
    )
