"""What makes steps."""

from __future__ import annotations

from typing import Literal

Engine = Literal["auto", "numba", "torch"]
"""Compiled loops, for tensors of a CPU where Numba is there, or plain torch on any device; "auto" is the former where
it can be had. "torch" is the off switch."""
