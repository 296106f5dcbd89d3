"""How ranks share the work."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from voxelocity.core.config import Config


class ParallelConfig(Config):
    """How ranks train together. Changes only roundings, and on a single process only whether it checkpoints."""

    mode: Literal["auto", "ddp", "fsdp", "checkpointing", "pipeline"] = "auto"
    """Where the network is: "ddp": a copy on each rank; "fsdp": parameters, gradients and optimizer state in shards;
    "checkpointing": a copy on each rank, which computes activations twice in place of keeping them; "pipeline": a
    stage on each rank, and every batch goes through all of them; "auto": copies if a step is expected to fit the
    devices, else the first of these, in this order, that fits by measurement."""
    num_microbatches: int = Field(default=8, ge=1, le=1024)
    """Pieces into which a pipeline divides a batch, at most as many as there are patches."""
    max_bytes: tuple[Annotated[float, Field(gt=0.0)], ...] = ()
    """Bytes that a step may take on each rank, such as [11e9, 8e9]; what is free there if not given. Settles what
    "auto" chooses, on CPUs too."""
    balance: Literal["auto", "equal", "measured"] | tuple[Annotated[float, Field(gt=0.0)], ...] = "auto"
    """How many patches of a batch each rank takes: equal numbers; numbers in these proportions, one for each rank, such
    as [0.6, 0.4]; "measured": equal numbers unless a few passes on each rank's device show that others make a step
    faster by a tenth; "auto": measured if the ranks have different devices, else equal."""
    silence_s: float = Field(default=25.0, ge=5.0, le=86_400.0)
    """Seconds without any sign of life after which a rank counts as stopped. Also the seconds after which it counts as
    hanging if the others wait for it in a training step; longer if any of the last steps took more than a twentieth of
    that. In a validation or while a checkpoint is written, if it neither computes nor waits for a disk meanwhile; if it
    does, four times as long, or 20 times what the last one took.
    Increase it where a file system may stall for longer."""
    bucket_mb: float = Field(default=25.0, gt=0.0, le=4096.0)
    """Megabytes of gradients that ranks exchange at once while the backward pass computes others."""
