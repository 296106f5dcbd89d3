"""How batches are put together beside the training."""

from __future__ import annotations

from pydantic import Field

from voxelocity.core.config import Config


class FeedConfig(Config):
    """Threads of the feed. They change when a batch is made, never what is in it."""

    num_threads: int = Field(ge=0, le=1024)
    """Threads that put batches together; 0 does it in the training's own thread."""
    num_batches_ahead: int = Field(default=2, ge=1, le=1024)
    """Batches made or being made beyond the one in use; each takes memory."""
