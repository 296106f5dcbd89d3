"""Concurrency of the pipeline: threads make items ahead, and they are given in order."""

from typing import TYPE_CHECKING

from voxelocity_observe.core.first_use import first_use

if TYPE_CHECKING:
    from voxelocity.data.feed.buffers import BufferRing
    from voxelocity.data.feed.ordered import OrderedPrefetch, ThreadBuffer

__all__ = ["BufferRing", "OrderedPrefetch", "ThreadBuffer"]

# Buffers are torch's; predictions in another runtime need only the threads.
__getattr__ = first_use(__name__, {"buffers": ("BufferRing",), "ordered": ("OrderedPrefetch", "ThreadBuffer")})
