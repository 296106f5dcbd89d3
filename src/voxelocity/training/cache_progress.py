"""How the user sees the cache being filled."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from voxelocity.data.pipeline import CachingFacts
from voxelocity.report import bytes_text, duration_text


class CacheProgress:
    """In a terminal, a bar with cases, prepared bytes per second and time left; everywhere, one closing line."""

    def __init__(self, console: Console, tier: str, num_cases: int) -> None:
        self._console = console
        self._tier = tier
        self._bar = Progress(
            TextColumn("preparing"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("preparing", total=num_cases, rate="")
        self._num_bytes = 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def advance(self, case_id: str, num_bytes: int) -> None:
        """One case is ready."""
        self._num_bytes += num_bytes
        elapsed_s = self._bar.tasks[0].elapsed or 0.0
        rate = f"{bytes_text(self._num_bytes / elapsed_s)}/s" if elapsed_s > 0.0 else ""
        self._bar.update(self._task, advance=1, rate=rate)

    def finish(self, facts: CachingFacts) -> None:
        """Prints what was done."""
        found = f", {facts.num_found} of them found ready" if facts.num_found else ""
        num_cases = facts.num_found + facts.num_prepared
        where = f"in the {self._tier} cache" if facts.num_kept else "not kept"
        part = f", {facts.num_kept} of the cases" if 0 < facts.num_kept < num_cases else ""
        is_worth_telling = facts.num_found == 0 and facts.seconds >= 1.0
        speed = f", {bytes_text(facts.num_bytes / facts.seconds)}/s" if is_worth_telling else ""
        self._console.print(
            f"prepared {num_cases} cases in {duration_text(facts.seconds)}{found}: "
            f"{bytes_text(facts.num_bytes)} {where}{part}{speed}",
            highlight=False,
        )
