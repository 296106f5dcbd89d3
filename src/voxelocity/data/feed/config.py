"""How batches are put together while training runs."""

from __future__ import annotations

from pydantic import Field

from voxelocity.core.config import Config


class FeedConfig(Config):
    """Threads of the feed. They affect when a batch is made, never its content."""

    num_threads: int = Field(ge=0, le=1024)
    """Threads that put batches together; 0 does it in the training thread."""
    num_batches_ahead: int = Field(default=2, ge=1, le=1024)
    """Batches made or being made beyond the one in use; each takes memory."""
