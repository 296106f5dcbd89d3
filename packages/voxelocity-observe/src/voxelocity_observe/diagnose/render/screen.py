"""The first screen of a diagnosis on a terminal: verdict, one bar, three cures, what was not measured, output paths.

Lines are wrapped here. Code and paths stay whole, so you can copy them. No text is read as markup, and color never
carries information alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from voxelocity_observe.core.quantities import count_text, duration_text
from voxelocity_observe.core.terminal_text import as_ascii, printable
from voxelocity_observe.diagnose.facts import Facts
from voxelocity_observe.diagnose.render.evidence import evidence_sections
from voxelocity_observe.diagnose.render.wording import (
    NOT_WRITTEN,
    beside_ceiling_text,
    cells,
    command_text,
    faster_text,
    few_steps_text,
    gain_text,
    own_steps_text,
    pace,
    per_second_text,
    percent_text,
    refused_texts,
    risk_text,
    shown,
    style_for,
)
from voxelocity_observe.diagnose.result import Diagnosis, Finding
from voxelocity_observe.document import blocks
from voxelocity_observe.document.blocks import Table
from voxelocity_observe.document.terminal import prose, table_lines

NUM_CURES = 3
_WIDEST = 100
_NARROWEST = 24


@dataclass(frozen=True, kw_only=True)
class DiagnosisFiles:
    """Where a diagnosis was written; None for files that do not exist."""

    page: Path | None = None
    json: Path | None = None
    trace: Path | None = None
    kernels: Path | None = None


def print_screen(
    diagnosis: Diagnosis, console: Console, *, files: DiagnosisFiles | None = None, has_evidence: bool = False
) -> None:
    """Prints the first screen as the console can show it, and below it the evidence if asked for.

    Without color (NO_COLOR, TERM=dumb, a pipe) the bar is made of letters. If the console's encoding is not a Unicode
    one, the text is ASCII.
    """
    has_color = console.color_system is not None and not console.no_color
    is_ascii = not console.encoding.startswith("utf")
    # rich assumes that every dumb terminal is 80 columns wide.
    width = shutil.get_terminal_size().columns if console.is_dumb_terminal else console.width
    for line in screen_lines(diagnosis, width=width, has_color=has_color, files=files, has_evidence=has_evidence):
        console.print(_as_ascii(line) if is_ascii else line, soft_wrap=True, highlight=False)


def screen_lines(
    diagnosis: Diagnosis,
    *,
    width: int,
    has_color: bool,
    files: DiagnosisFiles | None = None,
    has_evidence: bool = False,
) -> list[Text]:
    """The lines of the screen. Only code, commands and paths may be longer than `width`."""
    columns = max(_NARROWEST, min(width, _WIDEST))
    lines = [*prose(f"Diagnosis of {command_text(diagnosis.facts)}", columns, style="dim"), Text()]
    lines += prose(diagnosis.verdict, columns, style="bold")
    lines += [*_bar(diagnosis, columns, has_color=has_color), *_pace(diagnosis, columns)]
    lines += _cures(diagnosis, columns)
    lines += _listed("Not measured", diagnosis.not_measured, columns)
    lines += _listed(NOT_WRITTEN, refused_texts(diagnosis.facts), columns)
    lines += _files(diagnosis, files or DiagnosisFiles(), columns, has_evidence=has_evidence)
    if has_evidence:
        for section in evidence_sections(diagnosis):
            lines += [Text(), *prose(section.title, columns, style="bold")]
            for block in section.blocks:
                if isinstance(block, Table):
                    lines += [Text(), *table_lines(block, columns)]
                elif isinstance(block, blocks.Text):
                    lines += prose(block.text, columns, style="dim")
    return lines


def _bar(diagnosis: Diagnosis, columns: int, *, has_color: bool) -> Iterator[Text]:
    parts = shown(diagnosis.split)
    if not parts:
        return
    bar, legend = Text(), list[Text]()
    for part, count in zip(parts, cells([part.seconds for part in parts], columns), strict=True):
        look = style_for(part.name)
        style = f"black on {look.terminal}" if has_color else ""
        # In color the letter appears once, at the part's start; without color the bar is all letters.
        bar.append((look.letter if not has_color else look.letter.ljust(count)) if count else "", style=style)
        if not has_color:
            bar.append(look.letter * (count - 1))
        swatch = Text(f" {look.letter} " if has_color else look.letter, style=style)
        legend.append(Text.assemble(swatch, f" {part.name} {percent_text(part.share)}"))
    yield from (Text(), bar)
    yield from _in_rows(legend, columns)


def _in_rows(entries: Sequence[Text], columns: int) -> Iterator[Text]:
    row = Text()
    for entry in entries:
        if row and len(row) + 3 + len(entry) > columns:
            yield row
            row = Text()
        row = Text.assemble(row, "   " if row else "", entry)
    if row:
        yield row


def _pace(diagnosis: Diagnosis, columns: int) -> Iterator[Text]:
    seen, ceiling = pace(diagnosis), diagnosis.ceiling
    if seen.steps_per_s is not None:
        images = "" if seen.images_per_s is None else f", {per_second_text(seen.images_per_s, 'images')}"
        yield from prose(
            f"Watched: {count_text(seen.num_steps, 'step')} in {duration_text(seen.watched_s)}, "
            f"{per_second_text(seen.steps_per_s, 'steps')}{images}. {own_steps_text(diagnosis.facts)}",
            columns,
        )
    if ceiling is not None and ceiling.resident_s > 0.0:
        factor = ceiling.step_s / ceiling.resident_s
        yield Text()
        yield from prose(
            f"Ceiling: with its data always available, a step takes {duration_text(ceiling.resident_s)} instead of "
            f"{duration_text(ceiling.step_s)} ({ceiling.basis}{few_steps_text(diagnosis.facts)}), "
            f"{faster_text(factor, saved_share=1.0 - 1.0 / max(factor, 1.0))}. {beside_ceiling_text(diagnosis.split)}",
            columns,
        )


def _cures(diagnosis: Diagnosis, columns: int) -> Iterator[Text]:
    causes = diagnosis.causes
    if causes:
        yield Text()
        yield Text("What to change", style="bold")
        for number, finding in enumerate(causes[:NUM_CURES], start=1):
            yield Text()
            yield from _cure(number, finding, diagnosis.facts, columns)
    others = [*causes[NUM_CURES:], *(finding for finding in diagnosis.findings if not finding.is_cause)]
    if others:
        yield Text()
        yield Text("Also seen", style="bold")
        for finding in others[:NUM_CURES]:
            yield from prose(
                f"{finding.code} {finding.title}; {gain_text(finding, diagnosis.facts)}", columns, hanging="  "
            )
        if len(others) > NUM_CURES:
            yield from prose(f"and {len(others) - NUM_CURES} more on the page", columns, hanging="  ")


def _cure(number: int, finding: Finding, facts: Facts, columns: int) -> Iterator[Text]:
    indent = "   "
    yield from prose(f"{number}. {finding.title} [{finding.code}]", columns, hanging=indent, style="bold")
    yield from prose(finding.cause, columns, indent=indent)
    figures = f"Gain: {gain_text(finding, facts).removeprefix('gain ')}. Risk: {risk_text(finding)}."
    yield from prose(figures, columns, indent=indent)
    where = f" at {finding.where}" if finding.where else ""
    yield from prose(f"Change{where}:", columns, indent=indent)
    for line in finding.change.expandtabs(4).splitlines():
        yield Text(f"{indent}  {printable(line)}".rstrip(), style="cyan")


def _listed(title: str, sentences: Sequence[str], columns: int) -> Iterator[Text]:
    if sentences:
        yield Text()
        yield Text(title, style="bold")
        for line in sentences:
            yield from prose(f"- {line}", columns, hanging="  ")


def _files(diagnosis: Diagnosis, files: DiagnosisFiles, columns: int, *, has_evidence: bool) -> Iterator[Text]:
    named = (("Page", files.page), ("Trace", files.trace), ("Kernels", files.kernels), ("JSON", files.json))
    lines = [Text(f"{name.ljust(8)} {printable(str(path))}") for name, path in named if path is not None]
    if lines:
        yield Text()
        yield from lines
    yield Text()
    if diagnosis.own_share is not None:
        yield from prose(
            f"Watching took {percent_text(diagnosis.own_share)} of the watched time.", columns, style="dim"
        )
    hints = [] if has_evidence else ["--evidence prints all evidence"]
    if diagnosis.findings:
        hints.append(f"voxelocity explain {diagnosis.findings[0].code} says more")
    if hints:
        yield from prose("; ".join(hints) + ".", columns, style="dim")


def _as_ascii(line: Text) -> Text:
    plain = as_ascii(line.plain)
    spans = line.spans if len(plain) == len(line.plain) else []
    return Text(plain, style=line.style, spans=spans)
