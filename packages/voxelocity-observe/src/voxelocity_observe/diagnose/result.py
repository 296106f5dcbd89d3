"""The result of a diagnosis as plain records, and as `diagnosis.json`, written whole and read back.

While `VERSION` stays, keys are only added. A missing key takes the record's default and an unknown one is ignored, so
older and newer files of one version can be read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.plain import excerpt, plain_data, record_of, shortened
from voxelocity_observe.core.time_parts import TimeShare
from voxelocity_observe.core.whole_file import write_whole
from voxelocity_observe.diagnose.facts import Facts

Risk = Literal["safe", "changes results"]
Basis = Literal["measured", "estimated"]

FILE_NAME = "diagnosis.json"
FORMAT = "voxelocity diagnosis"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a rule found.

    Attributes:
        code: stable, "VX101"; `voxelocity explain VX101` says more.
        title: the cause in a few words, as a heading: "Batches are made in the training's own thread".
        cause: one or two sentences with this program's own figures.
        evidence: one figure per line, with where it was seen.
        saves_s: seconds of `of_s` that the change would save; None where the recording does not show it.
        of_s: seconds of the watched time, all of it (steps, validation, saving).
        basis: whether `saves_s` was measured by an experiment or follows from counted seconds.
        risk: "safe" changes no result of the program.
        change: the exact change, as code or a command, ready to paste.
        where: "file:line" of the user's code to change; "" where it is a setting.
        is_cause: False for what is worth knowing but does not hold this program back now.
    """

    code: str
    title: str
    cause: str
    evidence: Sequence[str]
    saves_s: float | None
    of_s: float
    basis: Basis
    risk: Risk
    change: str
    where: str = ""
    is_cause: bool = True

    @property
    def speedup(self) -> float | None:
        """How many times faster the program would be; None where that is unknown."""
        if self.saves_s is None:
            return None
        return self.of_s / max(self.of_s - self.saves_s, 1e-9)


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """How fast the program would be if its data were always there.

    Attributes:
        step_s: seconds of a step now, the mean of the counted ones.
        resident_s: seconds of a step on batches that are already there.
        basis: "measured" by the experiment, "estimated" from the parts of the counted steps.
    """

    step_s: float
    resident_s: float
    basis: Basis


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What holds a program back.

    Attributes:
        verdict: one plain sentence.
        split: all of the watched time, in the order of a step, then validation, saving, epoch start and other;
            the seconds sum to the watched time.
        ceiling: None where no step was counted.
        findings: causes first, by how much they save; then what is worth knowing.
        not_measured: what could not be seen, and why, in words.
        own_share: share of the watched time that watching itself took.
        facts: what all of it is based on.
    """

    verdict: str
    split: Sequence[TimeShare]
    ceiling: Ceiling | None
    findings: Sequence[Finding]
    not_measured: Sequence[str]
    own_share: float | None
    facts: Facts

    def __repr__(self) -> str:
        """One line with what holds the program back."""
        return f"Diagnosis({self.verdict!r}, findings: {', '.join(found.code for found in self.findings) or 'none'})"

    @property
    def causes(self) -> Sequence[Finding]:
        return [finding for finding in self.findings if finding.is_cause]


def diagnosis_to_plain(diagnosis: Diagnosis) -> dict[str, Any]:
    """The whole diagnosis as data for `json.dump`.

    Returns:
        format, version: what this is.
        verdict, split, ceiling, findings, not_measured, own_share, facts: as `Diagnosis` has them. A finding also has
            its `speedup`. NaN and infinite numbers are null.
    """
    plain = plain_data(diagnosis, where="diagnosis")
    for written, finding in zip(plain["findings"], diagnosis.findings, strict=True):
        written["speedup"] = plain_data(finding.speedup, where="diagnosis")
    return {"format": FORMAT, "version": VERSION, **plain}


def diagnosis_from_plain(plain: Mapping[str, Any], *, where: str = FILE_NAME) -> Diagnosis:
    """The diagnosis that this data describes; `diagnosis_to_plain` of it gives the data again.

    Args:
        plain: what `diagnosis_to_plain` returned.
        where: file it comes from, for errors.

    Raises:
        InputError: it is not a diagnosis, is of another version, or lacks a key that has no default.
    """
    if not isinstance(plain, Mapping) or plain.get("format") != FORMAT:
        raise InputError(f"diagnosis: {where} holds no diagnosis; make one with 'voxelocity diagnose -- COMMAND'")
    if plain.get("version") != VERSION:
        raise InputError(
            f"diagnosis: {where} is of version {shortened(plain.get('version'))}, this Voxelocity reads version "
            f"{VERSION}; read it with the version that wrote it, or diagnose again"
        )
    try:
        diagnosis: Diagnosis = record_of(Diagnosis, plain, has_gaps=True)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"diagnosis: {where} is damaged ({excerpt(error)}); diagnose again") from error
    return diagnosis


def write_diagnosis(diagnosis: Diagnosis, folder: str | Path) -> Path:
    """The path of `diagnosis.json` in the folder, which now holds the diagnosis.

    Raises:
        OutputError: it cannot be written.
    """
    return write_whole(Path(folder) / FILE_NAME, (json_text(diagnosis) + "\n").encode())


def json_text(diagnosis: Diagnosis) -> str:
    """The diagnosis as JSON in ASCII, one line."""
    return json.dumps(diagnosis_to_plain(diagnosis), allow_nan=False)


def read_diagnosis(folder: str | Path) -> Diagnosis:
    """The diagnosis in a folder, or in a `diagnosis.json` given by its own path.

    Raises:
        InputError: there is none, or it cannot be read.
    """
    path = Path(folder)
    path = path / FILE_NAME if path.is_dir() else path
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"diagnosis: cannot read {path} ({error.strerror}); name a folder that 'voxelocity diagnose' wrote"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"diagnosis: {path} is not JSON ({excerpt(error)}); diagnose again") from error
    return diagnosis_from_plain(plain, where=str(path))
