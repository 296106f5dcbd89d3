"""What a recording is asked for. Travels to the watched program, and on to its children, as one variable of the
environment; the recorder reads it and nothing else."""

from __future__ import annotations

import json
from typing import NamedTuple

VARIABLE = "VOXELOCITY_RECORD"
"""Holds the settings as JSON. Without it nothing of the recorder runs."""


class Settings(NamedTuple):
    """Limits and switches of a recording.

    Attributes:
        folder: takes the files; every process writes one of its own.
        seconds: of counted time after which enough was seen in any case.
        min_steps: counted steps without which it is never enough.
        min_seconds: of counted time without which it is never enough, unless the program is short.
        warmup_steps: steps that are not counted in any case.
        warmup_seconds: after which steps count although their times have not settled.
        max_steps: counted steps after which a program that runs to its end is no longer watched.
        whole: lets the program run to its end; no experiment is made.
        experiments: runs steps on resident batches, then the loader alone, before the program is ended.
        experiment_seconds: that one experiment takes, about.
        profile: has three steps profiled.
        nsys: the program runs under Nsight Systems, which captures the profiled steps in place of torch.profiler.
        kept_bytes: most that batches kept for the experiment may take.
        keeps_saves: lets the program write its files while it is ended; there are no steps on resident batches then.
    """

    folder: str
    seconds: float = 120.0
    min_steps: int = 20
    min_seconds: float = 5.0
    warmup_steps: int = 3
    warmup_seconds: float = 10.0
    max_steps: int = 50_000
    whole: bool = False
    experiments: bool = True
    experiment_seconds: float = 3.0
    profile: bool = True
    nsys: bool = False
    kept_bytes: int = 1 << 30
    keeps_saves: bool = False

    def to_json(self) -> str:
        return json.dumps(self._asdict(), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """The settings; keys of another version are left out.

        Raises:
            ValueError: the text is no JSON object, or names no folder.
        """
        found = json.loads(text)
        if not isinstance(found, dict) or not isinstance(found.get("folder"), str):
            raise ValueError(
                f"recorder: {VARIABLE}={text!r} names no folder; start the program by `voxelocity diagnose`"
            )
        return cls(**{name: value for name, value in found.items() if name in cls._fields})
