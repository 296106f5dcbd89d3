"""The engine that runs steps."""

from __future__ import annotations

from typing import Literal

Engine = Literal["auto", "numba", "torch"]
"""Compiled loops, for CPU tensors if Numba is installed, or plain torch on any device; "auto" takes the former if
available. "torch" is the off switch."""
