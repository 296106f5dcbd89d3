"""Files of a data set, and what of them a recipe's model was trained on, kept with it: today's may be others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from voxelocity_observe.core.errors import ScanError

# Of a larger file, blocks at equal distances are read: slides have gigabytes.
_WHOLE_BYTES, _BLOCK_BYTES, _NUM_BLOCKS = 4 * 2**20, 2**18, 16


def visible_in(folder: Path) -> list[Path]:
    """What a folder holds, in the order of names, without what begins with a dot.

    Archives from a Mac put such a file next to each file, with its ending.
    """
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def content_of(path: Path) -> str:
    """A text that depends on the content of a file alone, not on its name: of its size and up to 4 MiB of its bytes.

    Raises:
        ScanError: it cannot be read.
    """
    try:
        size = path.stat().st_size
        total = hashlib.blake2b(str(size).encode(), digest_size=16)
        with path.open("rb") as file:
            if size <= _WHOLE_BYTES:
                total.update(file.read())
            for number in range(_NUM_BLOCKS if size > _WHOLE_BYTES else 0):
                file.seek(number * (size - _BLOCK_BYTES) // (_NUM_BLOCKS - 1))
                total.update(file.read(_BLOCK_BYTES))
    except OSError as error:
        raise ScanError(f"recipe: {path} cannot be read ({error.strerror}); check the file") from None
    return total.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a data set: a piece of a slide.

    Attributes:
        name: at the time of the training.
        content: of its file, as `content_of`.
        patient: whose it is.
        box: (y, x, height, width) within the file; empty for all of it.
    """

    name: str
    content: str
    patient: str
    box: tuple[int, ...] = ()

    def meets(self, other: Part) -> bool:
        """Whether both have pixels in common."""
        if self.content != other.content:
            return False
        if not self.box or not other.box:
            return True
        return all(
            mine < theirs + their_size and theirs < mine + my_size
            for mine, my_size, theirs, their_size in zip(
                self.box[:2], self.box[2:], other.box[:2], other.box[2:], strict=True
            )
        )


@dataclass(frozen=True, kw_only=True)
class Division:
    """What a model was trained on, and what was held out from that."""

    trained: tuple[Part, ...]
    held_out: tuple[Part, ...]

    def to_plain(self) -> dict[str, Any]:
        """As plain data for `run.yaml` and `model.json`."""
        return {
            side: [{**asdict(part), "box": list(part.box)} for part in parts]
            for side, parts in (("trained", self.trained), ("held_out", self.held_out))
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Sequence[Mapping[str, Any]]]) -> Self:
        """What `to_plain` returned."""
        sides = {
            side: tuple(Part(**{**part, "box": tuple(part["box"])}) for part in plain[side])
            for side in ("trained", "held_out")
        }
        return cls(**sides)

    def knows(self, parts: Iterable[Part]) -> bool:
        """Whether any of the parts is of a file that was trained on or held out, so that names mean the same."""
        contents = {part.content for part in (*self.trained, *self.held_out)}
        return any(part.content in contents for part in parts)

    def has(self, part: Part, *, by_patient: bool) -> bool:
        """Whether the model has seen the part, or, unless it was held out from that, others of its file or patient.

        Args:
            part: of today's data.
            by_patient: whether the names of patients mean the same as in the training.
        """
        if any(part.meets(other) for other in self.trained):
            return True
        if any((part.content, part.box) == (other.content, other.box) for other in self.held_out):
            return False
        return self.is_near(part, by_patient=by_patient)

    def is_near(self, part: Part, *, by_patient: bool) -> bool:
        """Whether something of the same file or patient was trained on."""
        return any(
            part.content == other.content or (by_patient and part.patient == other.patient) for other in self.trained
        )
