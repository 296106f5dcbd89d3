"""How torch says that memory is full."""

from __future__ import annotations

import torch

# The CPU allocator raises a plain RuntimeError with these words, oneDNN one with nothing more than these texts: what it
# does not support fails earlier, at the descriptor of the primitive.
_CPU_WORDS = "DefaultCPUAllocator: can't allocate memory"
_ONEDNN_TEXTS = ("could not create a primitive", "could not execute a primitive")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the memory of a device or of the host is full."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and (_CPU_WORDS in str(error) or str(error) in _ONEDNN_TEXTS)
