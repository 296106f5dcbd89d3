"""The settings of a recording. One environment variable carries them to the watched program and its children; the
recorder reads nothing else."""

from __future__ import annotations

import json
from typing import NamedTuple

VARIABLE = "VOXELOCITY_RECORD"
"""Holds the settings as JSON. Without it the recorder does not run."""


class Settings(NamedTuple):
    """Limits and switches of a recording.

    Attributes:
        folder: gets the files; every process writes its own.
        seconds: counted time after which recording ends in any case.
        min_steps: counted steps that recording always needs.
        min_seconds: counted time that recording always needs, unless the program is short.
        warmup_steps: steps that are not counted in any case.
        warmup_seconds: time after which steps count even if their times have not settled.
        max_steps: counted steps after which a program that runs to its end is no longer watched.
        whole: lets the program run to its end, without experiments.
        experiments: runs steps on resident batches, then the loader alone, before the program is ended.
        experiment_seconds: approximate time of one experiment.
        profile: profiles three steps.
        nsys: the program runs under Nsight Systems, which captures the profiled steps instead of torch.profiler.
        kept_bytes: maximum size of the batches kept for the experiment.
        keeps_saves: lets the program write its files while it is being ended; no steps run on resident batches then.
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
            ValueError: the text is not a JSON object, or names no folder.
        """
        found = json.loads(text)
        if not isinstance(found, dict) or not isinstance(found.get("folder"), str):
            raise ValueError(
                f"recorder: {VARIABLE}={text!r} names no folder; start the program by `voxelocity diagnose`"
            )
        return cls(**{name: value for name, value in found.items() if name in cls._fields})
