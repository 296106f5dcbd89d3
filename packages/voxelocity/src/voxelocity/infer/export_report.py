"""What an export was compared on and how it did, as records and as a `Document`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from voxelocity.core.records import mean_where_known
from voxelocity_observe.core.quantities import count_text, duration_text
from voxelocity_observe.document.blocks import Card, Document, Section, Table, Text, fact_table


@dataclass(frozen=True, kw_only=True)
class ExportedCase:
    """A validation case predicted by the run and by its export, on the scan's own grid.

    Attributes:
        num_voxels: of the scan.
        num_foreground: voxels that either calls foreground.
        num_other: voxels to which the two give other labels.
        dice_before: mean Dice of the run's prediction; None if no class is in it or in the truth.
        dice_after: that of the export's.
        seconds_before: of the whole prediction by the run.
        seconds_after: by the export.
    """

    case_id: str
    num_voxels: int
    num_foreground: int
    num_other: int
    dice_before: float | None
    dice_after: float | None
    seconds_before: float
    seconds_after: float

    @property
    def agreement(self) -> float:
        """Share of the foreground that both label alike; 1 if there is none."""
        return 1.0 - self.num_other / self.num_foreground if self.num_foreground else 1.0

    def in_words(self) -> str:
        """One line for a terminal."""
        differ = count_text(self.num_other, "voxel")
        return (
            f"{self.case_id}: {_share(self.agreement)} of the foreground alike (other labels: {differ}), Dice "
            f"{_dice(self.dice_before)} and {_dice(self.dice_after)}, {duration_text(self.seconds_before)} and "
            f"{duration_text(self.seconds_after)}"
        )


@dataclass(frozen=True, kw_only=True)
class ExportRecord:
    """An export and its comparison with the run.

    Attributes:
        run: folder of the run.
        unlearned: why its training is too short to be scored; "" where it is not.
        to: format of the export.
        device: "cpu" or "cuda", where both ran.
        build_s: seconds of writing the network.
        has_dynamic_space: whether windows may have another shape.
        num_windows: whose logits were compared.
        windows_of: the case they are from; "" for noise.
        difference: largest difference of a logit.
        relative_difference: the same as a share of the largest logit.
        tolerance: that share which must not be exceeded.
        window_s: seconds of a window in a full batch, by the run and by the export.
        cases: validation cases that both predicted.
    """

    run: str
    unlearned: str = ""
    to: str
    device: str
    build_s: float
    has_dynamic_space: bool
    num_windows: int
    windows_of: str
    difference: float
    relative_difference: float
    tolerance: float
    window_s: tuple[float, float]
    cases: tuple[ExportedCase, ...] = ()

    @property
    def is_close(self) -> bool:
        """Whether the logits agree. NaN agrees with nothing."""
        return self.relative_difference <= self.tolerance

    @property
    def mean_dice(self) -> tuple[float | None, float | None]:
        """Over the cases, by the run and by the export; None if there are none."""
        before = mean_where_known(case.dice_before for case in self.cases)
        return before, mean_where_known(case.dice_after for case in self.cases)

    @property
    def agreement(self) -> float | None:
        """Share of the foreground of all cases that both label alike."""
        num_foreground = sum(case.num_foreground for case in self.cases)
        return 1.0 - sum(case.num_other for case in self.cases) / num_foreground if num_foreground else None

    def verdict(self) -> str:
        """One or two sentences."""
        where = (
            f"{count_text(self.num_windows, 'window')} of case {self.windows_of}"
            if self.windows_of
            else f"{count_text(self.num_windows, 'window')} of noise"
        )
        text = (
            f"The export matches the run: on {where}, logits differ by at most {self.difference:.2g}, "
            f"{self.relative_difference:.2g} of the largest logit (allowed: {self.tolerance:.2g})."
        )
        if self.agreement is None:
            return text
        text += (
            f" {_share(self.agreement)} of the foreground of {count_text(len(self.cases), 'validation case')} has the "
            "same label"
        )
        if self.unlearned:
            return f"{text}. The run has no score: {self.unlearned}."
        before, after = self.mean_dice
        return f"{text}, and the mean Dice is {_dice(after)} (run: {_dice(before)})."


def export_document(record: ExportRecord) -> Document:
    """The comparison as a page and as plain data."""
    before_s, after_s = record.window_s
    before, after = record.mean_dice
    dice = Card(name="Mean Dice", value=_dice(after), note=f"run: {_dice(before)}")
    notices = [] if record.cases else ["No validation case was compared, so labels and Dice are unknown."]
    return Document(
        kind="export report",
        title=f"Export to {record.to}",
        verdict=record.verdict(),
        notices=notices,
        cards=[
            Card(name="Difference of logits", value=f"{record.difference:.2g}", note="largest"),
            Card(name="Seconds per window", value=duration_text(after_s), note=f"run: {duration_text(before_s)}"),
            *([dice] if record.cases and not record.unlearned else []),
        ],
        sections=[
            Section(title="Validation cases", blocks=_case_blocks(record.cases)),
            Section(title="Export", blocks=[fact_table("Export", _facts(record)).without_caption()]),
        ],
        values={
            **asdict(record),
            "agreement": record.agreement,
            "mean_dice": {"run": before, "export": after},
            "window_s": {"run": before_s, "export": after_s},
        },
    )


def _case_blocks(cases: Sequence[ExportedCase]) -> list[Table | Text]:
    if not cases:
        return []
    rows = [
        (
            case.case_id,
            _share(case.agreement),
            str(case.num_other),
            _dice(case.dice_before),
            _dice(case.dice_after),
            duration_text(case.seconds_before),
            duration_text(case.seconds_after),
        )
        for case in cases
    ]
    heads = ("Case", "Same label", "Voxels that differ", "Dice, run", "Dice, export", "Time, run", "Time, export")
    explained = "Same label: share of the voxels that either calls foreground. Times include reading and preparing."
    return [
        Table(caption="Validation cases", heads=heads, rows=rows, hides_caption=True),
        Text(text=explained, is_hint=True),
    ]


def _facts(record: ExportRecord) -> list[tuple[str, str]]:
    before_s, after_s = record.window_s
    return [
        ("Run", record.run),
        ("Device", record.device),
        ("Time to build", duration_text(record.build_s)),
        ("Windows of other shapes", "possible" if record.has_dynamic_space else "not possible"),
        ("Seconds per window", f"{duration_text(after_s)} (run, eager: {duration_text(before_s)})"),
        ("Largest difference of logits", f"{record.difference:.3g}"),
        ("As a share of the largest logit", f"{record.relative_difference:.3g} (allowed: {record.tolerance:.3g})"),
    ]


def _share(value: float) -> str:
    # Not rounded up to 100 %.
    return f"{int(value * 1e5) / 1e3:.3f} %"


def _dice(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
