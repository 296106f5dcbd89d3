"""Concurrency of the path: items made ahead by threads and given in order, and how many threads to use."""

from voxelocity.data.feed.config import FeedConfig
from voxelocity.data.feed.cpu import cpu_budget
from voxelocity.data.feed.ordered import OrderedPrefetch, ThreadBuffer

__all__ = ["FeedConfig", "OrderedPrefetch", "ThreadBuffer", "cpu_budget"]
