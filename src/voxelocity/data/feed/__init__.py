"""Concurrency of the pipeline: threads make items ahead, and they are given in order."""

from voxelocity.data.feed.buffers import BufferRing
from voxelocity.data.feed.ordered import OrderedPrefetch, ThreadBuffer

__all__ = ["BufferRing", "OrderedPrefetch", "ThreadBuffer"]
