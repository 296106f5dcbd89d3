"""Tensors on devices: where transforms of them are lowered, and the streams on which batches of them are made."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch


def is_lowered_on(device: torch.device) -> bool:
    """Whether transforms of tensors on this device are lowered: CPUs, and CUDA devices unless that is turned off.

    The environment variable VOXELOCITY_MONAI_CUDA=0 leaves tensors on CUDA devices to MONAI.
    """
    return device.type == "cpu" or (device.type == "cuda" and os.environ.get("VOXELOCITY_MONAI_CUDA") != "0")


def is_far(device: torch.device) -> bool:
    """Whether reading a value from there waits, and work there is only launched."""
    return device.type != "cpu"


class Streams:
    """The streams of the thread that iterates over batches, for the threads that make them.

    Everything of a batch is launched on the stream that is current where its loop began, whichever thread launches it:
    so what uses the batch there is ordered after what makes it, and its memory belongs to that stream. Where CUDA is
    not in use, this does nothing.
    """

    def __init__(self) -> None:
        is_used = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        numbers = range(torch.cuda.device_count()) if is_used else range(0)
        self._streams = [torch.cuda.current_stream(number) for number in numbers]

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Makes them this thread's current streams within the block.

        They wait for what is on the default streams, where threads that fill a cache have worked.
        """
        with contextlib.ExitStack() as ends:
            if self._streams:
                # Entering the stream of another device makes that device current.
                ends.enter_context(torch.cuda.device(torch.cuda.current_device()))
            own = torch.cuda.current_device() if self._streams else 0
            for stream in self._streams:
                default = torch.cuda.default_stream(stream.device)
                if stream != torch.cuda.current_stream(stream.device):
                    ends.enter_context(torch.cuda.stream(stream))
                if stream != default:
                    stream.wait_stream(default)
            if len(self._streams) > 1:
                ends.enter_context(torch.cuda.device(own))
            yield

    def hand_over(self, batch: Any) -> Any:
        """The batch, for this thread: its current streams wait where they are others than those of the loop."""
        for stream in self._streams:
            now = torch.cuda.current_stream(stream.device)
            if now != stream:
                now.wait_stream(stream)
                _record(batch, now)
        return batch


def _record(value: Any, stream: torch.cuda.Stream) -> None:
    """Keeps the memory of all tensors in a batch from being used again before the stream is done with them."""
    if isinstance(value, torch.Tensor):
        if value.is_cuda and value.device == stream.device:
            value.as_subclass(torch.Tensor).record_stream(stream)
    elif isinstance(value, dict):
        for part in value.values():
            _record(part, stream)
    elif isinstance(value, list | tuple):
        for part in value:
            _record(part, stream)


def record_read(tensor: torch.Tensor) -> None:
    """Notes that the current stream reads a tensor whose memory may belong to another stream, as a cache's does."""
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))
