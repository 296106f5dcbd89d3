"""How torch says that memory is full."""

from __future__ import annotations

import torch

# The allocator of the CPU raises a plain RuntimeError with these words.
_CPU_WORDS = "DefaultCPUAllocator: can't allocate memory"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the memory of a device or of the host is full."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and _CPU_WORDS in str(error)
