"""glibc's heap, simulated: what stays resident of memory that is taken and given back."""

from __future__ import annotations

_FIRST_THRESHOLD, _LAST_THRESHOLD = 2**17, 2**25
_PAGE, _HEADER = 4096, 16


class Heap:
    """The main arena of glibc's malloc: a block goes into the smallest gap that holds it, else to the end.

    Gaps stay resident, which is what a process takes beyond its tensors. Neighboring gaps do not join: the small blocks
    of Python and of autograd stand between aligned tensors. In six trainings without data, peaks came out at 0.89 to
    1.10 of the measured ones; with gaps that join, at 0.54 to 0.86 (docs/log). Blocks above a threshold are mapped
    alone, and unmapped when they are given back; each raises the threshold to its size in pages, up to 32 MiB, so the
    next one of that size is not mapped (mallopt(3)).

    Attributes:
        resident_bytes: now.
        most_bytes: the most so far.
    """

    def __init__(self) -> None:
        self.resident_bytes = self.most_bytes = 0
        self._threshold = _FIRST_THRESHOLD
        self._gaps: list[int] = []
        # By key, its bytes and whether it is mapped alone.
        self._blocks: dict[int, tuple[int, bool]] = {}

    def take(self, key: int, num_bytes: int) -> None:
        """Takes a block, named by a key that no other has."""
        gap = min((size for size in self._gaps if size >= num_bytes), default=0)
        if gap:
            self._gaps.remove(gap)
            if gap > num_bytes:
                self._gaps.append(gap - num_bytes)
        else:
            self.resident_bytes += num_bytes
        self._blocks[key] = (num_bytes, not gap and num_bytes >= self._threshold)
        self.most_bytes = max(self.most_bytes, self.resident_bytes)

    def give_back(self, key: int) -> None:
        """Gives the block back that was taken under this key."""
        num_bytes, is_mapped = self._blocks.pop(key)
        if not is_mapped:
            self._gaps.append(num_bytes)
            return
        self.resident_bytes -= num_bytes
        mapped_bytes = -(-(num_bytes + _HEADER) // _PAGE) * _PAGE
        if mapped_bytes <= _LAST_THRESHOLD:
            self._threshold = max(self._threshold, mapped_bytes)
