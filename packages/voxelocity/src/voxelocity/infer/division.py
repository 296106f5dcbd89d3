"""Which cases a model was trained on, and which were held out from it, kept with the model."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Literal, Self

from pydantic import Field

from voxelocity.core.cases import Split
from voxelocity.core.config import Config
from voxelocity.core.volume import VolumeRef

Side = Literal["trained on", "held out", ""]


def case_bytes(ref: VolumeRef) -> int:
    """Bytes of a case's image files; 0 where one cannot be read. No file is opened."""
    try:
        files = [file for path in ref.images for file in (path.iterdir() if path.is_dir() else (path,))]
        return sum(file.stat().st_size for file in files)
    except OSError:
        return 0


class CaseDivision(Config):
    """Cases by their ids, with the bytes of their images: the same id in another data set has others."""

    training: dict[str, int] = Field(default_factory=dict)
    """Cases that the model was trained on, or the run that it was started from."""
    held_out: dict[str, int] = Field(default_factory=dict)
    """Cases that it was validated on instead."""

    @classmethod
    def of(cls, split: Split, *, before: Self | None = None, exposed: Container[str] = ()) -> Self:
        """Of a run on these cases.

        Args:
            split: the cases.
            before: of the model that it starts from.
            exposed: held-out cases that this model may have seen, which may not stand for such later.
        """
        own = cls(training=_sizes(split.training), held_out=_sizes(split.validation) if split.held_out else {})
        joined = own if before is None else own.joined(before)
        held_out = {case_id: size for case_id, size in joined.held_out.items() if case_id not in exposed}
        return joined.model_copy(update={"held_out": held_out})

    def side(self, ref: VolumeRef) -> Side:
        """What a case was in the training; "" if its id and size are not known from there."""
        size = case_bytes(ref)
        if self.training.get(ref.case_id) == size:
            return "trained on"
        return "held out" if self.held_out.get(ref.case_id) == size else ""

    def joined(self, other: Self) -> Self:
        """Of an ensemble of two models, or of a run started from another one: held out is what neither has seen."""
        training = {**other.training, **self.training}
        either = {**other.held_out, **self.held_out}
        held_out = {case_id: size for case_id, size in either.items() if case_id not in training}
        return type(self)(training=training, held_out=held_out)


def held_out_cases(division: CaseDivision, refs: Iterable[VolumeRef]) -> tuple[list[VolumeRef], list[str]]:
    """The labeled cases that a model has not seen, and what to know about that.

    In the data set of the training, these are the cases that were not trained on and are of no patient who was. In
    another data set, whatever its cases are called, all are unseen.
    """
    labeled = [ref for ref in refs if ref.label is not None]
    sides: Mapping[str, Side] = {ref.case_id: division.side(ref) for ref in labeled}
    if not any(sides.values()):
        return labeled, [
            f"By names and sizes, none of the {len(labeled)} labeled cases was trained on or held out, so all of them "
            "count as unseen."
        ]
    seen = {ref.patient or ref.case_id for ref in labeled if ref.case_id in division.training}
    unseen = [
        ref for ref in labeled if ref.case_id not in division.training and (ref.patient or ref.case_id) not in seen
    ]
    new = [ref.case_id for ref in unseen if not sides[ref.case_id]]
    notices = [f"{len(new)} of the {len(unseen)} cases were not in the data of the training."] if new else []
    return unseen, notices


def _sizes(refs: Iterable[VolumeRef]) -> dict[str, int]:
    return {ref.case_id: case_bytes(ref) for ref in refs}
