"""A data set as a value: its cases, the names of their channels and classes, and how they split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from voxelocity.core.volume import VolumeRef
from voxelocity_observe.core.errors import DatasetError
from voxelocity_observe.core.quantities import count_text

Fold = int | Literal["all"]
MAX_CLASSES = 65_535
"""Background and ignored voxels included: indices are `index_dtype`, in which one value marks what has no class."""
MAX_BYTE_CLASSES = 256
"""As many indices fit uint8, which compiled loops, kernels and overlapping classes need."""
MAX_LABEL_VALUE = 65_535
"""Of a label file; predictions are written in the data set's own values, as uint8 or uint16."""

MergedClasses = Mapping[int, Mapping[int, str]]
"""Of each class that was merged, by its value: the file values that it stands for, with the names that they had."""
LabelValues = Sequence[int | tuple[int, ...]]
"""For each class index the value of label files that it stands for, or the values."""

# Cases that a notebook lists.
_MOST_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class Split:
    """The training cases and the validation cases. `held_out` is False if both are the same cases."""

    training: tuple[VolumeRef, ...]
    validation: tuple[VolumeRef, ...]
    held_out: bool

    @property
    def num_shared_patients(self) -> int:
        """Patients with scans on both sides; their scores are too optimistic."""
        return len({_patient(ref) for ref in self.training} & {_patient(ref) for ref in self.validation})


@dataclass(frozen=True, kw_only=True)
class Cases:
    """The cases of one data set. No voxel has been read.

    Attributes:
        name: what the data set calls itself.
        root: the folder or file it was opened from.
        layout: the form it was found in ("msd", "nnunet", "csv").
        channels: one name per image channel.
        labels: file value to class name, background (0) included; empty if the form does not declare classes
            (`data.pipeline` then reads them from the label files).
        refs: every case, sorted by case id.
        num_folds: folds the data set declares, or the default number of folds.
        regions: of overlapping classes, the file values of each by its name, in the order in which predictions are
            drawn, later ones over earlier ones; empty if classes exclude each other.
        region_values: the file value that each of them is drawn with.
        merged: of classes that stand for several of the data set's, by their value, these; empty if none does.
        ignore_value: the file value of voxels without a known class, which are neither learned from nor scored; the
            highest of all. Its index follows those of the classes.
    """

    name: str
    root: Path
    layout: str
    channels: tuple[str, ...]
    labels: Mapping[int, str]
    refs: tuple[VolumeRef, ...]
    num_folds: int = 5
    regions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    region_values: tuple[int, ...] = ()
    merged: MergedClasses = field(default_factory=dict)
    ignore_value: int | None = None

    def __len__(self) -> int:
        return len(self.refs)

    def __repr__(self) -> str:
        """One line that describes the data set."""
        num_labeled = sum(ref.label is not None for ref in self.refs)
        classes = ", ".join(self.scored) or "not declared"
        return (
            f"Cases({self.name!r}, {self.layout}: {count_text(len(self.refs), 'case')}, {num_labeled} labeled; "
            f"channels: {', '.join(self.channels)}; classes: {classes}; {str(self.root)!r})"
        )

    def _repr_html_(self) -> str:
        """How notebooks show it: what the data set is, and its first cases."""
        from voxelocity_observe.document.blocks import Document, Section, Table, fact_table

        num_labeled = sum(ref.label is not None for ref in self.refs)
        facts = {
            "Cases": f"{len(self.refs):,}, {num_labeled:,} labeled",
            "Patients": f"{self.num_patients:,}",
            "Channels": ", ".join(self.channels),
            "Classes": ", ".join(self.scored) or "not declared; read from the label files when a plan is made",
            "Folds": f"{self.num_folds}",
            "Layout": self.layout,
            "Folder": str(self.root),
        }
        rows = [
            (
                ref.case_id,
                ", ".join(path.name for path in ref.images),
                "" if ref.label is None else ref.label.name,
                ", ".join(map(str, ref.folds)),
            )
            for ref in self.refs[:_MOST_SHOWN]
        ]
        first = f"The first {_MOST_SHOWN} cases" if len(self.refs) > _MOST_SHOWN else "Cases"
        heads = ("Case", "Images", "Label", "Held out by fold")
        table = Table(caption=first, heads=heads, rows=rows, text_columns=frozenset({1, 2}), hides_caption=True)
        document = Document(
            kind="data set",
            title=self.name,
            verdict=f"{count_text(len(self.refs), 'case')}, {num_labeled:,} of them labeled; no voxel has been read.",
            sections=[
                Section(title="Data set", blocks=[fact_table("Data set", facts.items()).without_caption()]),
                Section(title=first, blocks=[table]),
            ],
            footer="`vx.plan(cases)` makes a plan for them, `vx.train(cases, out)` trains.",
        )
        return document._repr_html_()

    def __iter__(self) -> Iterator[VolumeRef]:
        return iter(self.refs)

    @property
    def num_patients(self) -> int:
        """Patients among the cases; a case of unknown patient counts as one patient."""
        return len({_patient(ref) for ref in self.refs})

    @property
    def num_channels(self) -> int:
        return len(self.channels)

    @property
    def label_values(self) -> tuple[int, ...]:
        """File values in order of class index: class index i stands for `label_values[i]`."""
        return tuple(sorted(self.labels))

    @property
    def stored_values(self) -> tuple[int | tuple[int, ...], ...]:
        """What label files may hold, in order of index: the values of the classes, then the ignored one."""
        return stored_values(self.labels, self.merged, self.ignore_value)

    @property
    def ignored(self) -> int | None:
        """The index of ignored voxels; None if none are."""
        return None if self.ignore_value is None else len(self.labels)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Class names in order of class index, background first."""
        return tuple(self.labels[value] for value in self.label_values)

    @property
    def num_classes(self) -> int:
        """Classes, including the background."""
        return len(self.labels)

    @property
    def scored(self) -> dict[str, tuple[int, ...]]:
        """Names of what is learned and scored, with the class indices that each covers: regions, or single classes."""
        return scored_classes(self.class_names, self.region_indices)

    @property
    def region_indices(self) -> dict[str, tuple[int, ...]]:
        """`regions` in class indices."""
        index = {value: number for number, value in enumerate(self.label_values)}
        return {name: tuple(index[value] for value in values) for name, values in self.regions.items()}

    @property
    def region_order(self) -> tuple[int, ...]:
        """`region_values` in class indices."""
        return tuple(self.label_values.index(value) for value in self.region_values)

    def training(self, fold: Fold) -> Cases:
        """Only the training cases when `fold` is held out.

        Raises:
            DatasetError: as `split`.
        """
        return replace(self, refs=self.split(fold).training)

    def split(self, fold: Fold) -> Split:
        """The labeled cases, divided by `fold`; "all" puts every case on both sides, with `held_out` False.

        Raises:
            DatasetError: there are no labeled cases, or the fold holds no case to validate or to train on.
        """
        labeled = tuple(ref for ref in self.refs if ref.label is not None)
        if not labeled:
            raise DatasetError(f"source: {self.root}: no case has a label to train on; add labels")
        if fold == "all":
            return Split(training=labeled, validation=labeled, held_out=False)
        validation = tuple(ref for ref in labeled if fold in ref.folds)
        training = tuple(ref for ref in labeled if fold not in ref.folds)
        known = sorted({number for ref in labeled for number in ref.folds})
        if not validation and not known:
            raise DatasetError(
                f"source: {self.root}: no fold holds out any of the {len(labeled)} labeled cases; list some under "
                '"val" in splits_final.json, or remove that file to hold out every fifth, or give --fold all'
            )
        if not validation:
            raise DatasetError(
                f"source: {self.root}: fold {fold} holds zero of the {len(labeled)} labeled cases; "
                f"folds with cases: {known}; choose one of them or --fold all"
            )
        if not training:
            raise DatasetError(
                f"source: {self.root}: fold {fold} holds all {len(labeled)} labeled cases, none is left to train on; "
                "choose --fold all to train and validate on the same cases"
            )
        return Split(training=training, validation=validation, held_out=True)


def stored_values(
    labels: Mapping[int, str], merged: MergedClasses, ignore_value: int | None
) -> tuple[int | tuple[int, ...], ...]:
    """What label files may hold, in order of index, as `LabelValues`.

    Args:
        labels: class names by value.
        merged: the values that some of the classes stand for.
        ignore_value: of voxels without a known class; None without any.
    """
    of_classes = [tuple(merged[value]) if value in merged else value for value in sorted(labels)]
    return tuple(of_classes) if ignore_value is None else (*of_classes, ignore_value)


def indices_by_value(label_values: LabelValues) -> dict[int, int]:
    """The class index of each value of label files; of values that stand twice, the last one's."""
    return {
        value: index
        for index, values in enumerate(label_values)
        for value in ((values,) if isinstance(values, int) else values)
    }


def index_dtype(num_indices: int) -> Literal["uint8", "uint16"]:
    """How this many class indices are kept, that of ignored voxels included."""
    return "uint8" if num_indices <= MAX_BYTE_CLASSES else "uint16"


def scored_classes(class_names: Sequence[str], regions: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """What is scored, by name: the class indices of each region, or each foreground class by itself."""
    return {name: tuple(region) for name, region in regions.items()} or {
        name: (index,) for index, name in enumerate(class_names) if index > 0
    }


def _patient(ref: VolumeRef) -> str:
    return ref.case_id if ref.patient is None else ref.patient
