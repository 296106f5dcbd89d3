"""All that is known of one watched program, in one record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from voxelocity.diagnosis.facts.data import FetchFacts, FileFacts, LoaderFacts, TransformFacts
from voxelocity.diagnosis.facts.machine import HostFacts
from voxelocity.diagnosis.facts.profile import ProfileFacts
from voxelocity.diagnosis.facts.program import (
    CallFacts,
    CompileFacts,
    HeldFacts,
    MemoryFacts,
    NetworkFacts,
    OptimizerFacts,
    SettingFacts,
    StackFacts,
    SyncFacts,
)
from voxelocity.diagnosis.facts.recording import (
    CoreWait,
    Ending,
    ExperimentFacts,
    OwnCost,
    ProcessFacts,
    RefusedWrite,
)
from voxelocity.diagnosis.facts.steps import Pass, Step


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All that is known of one watched program.

    Attributes:
        main: the process that trains; of several ranks, the one with the lowest number.
        steps: all of them, of every phase, in order.
        seconds: from the start of the process to the end of recording.
        workers_cost_s: CPU seconds that watching took in the loaders' workers, over the whole recording.
        not_measured: what could not be seen, and why, in words.
        refused_writes: files that the program did not get to write because it was being ended.
        settings ... : None where the program never got that far.
    """

    command: Sequence[str]
    main: ProcessFacts
    seconds: float
    ended: Ending | None = None
    status: int | None = None
    steps: Sequence[Step] = ()
    passes: Sequence[Pass] = ()
    loaders: Sequence[LoaderFacts] = ()
    fetches: Sequence[FetchFacts] = ()
    transforms: Sequence[TransformFacts] = ()
    files: FileFacts | None = None
    stacks: Sequence[StackFacts] = ()
    syncs: Sequence[SyncFacts] = ()
    calls: Sequence[CallFacts] = ()
    settings: SettingFacts | None = None
    network: NetworkFacts | None = None
    optimizer: OptimizerFacts | None = None
    compiled: CompileFacts | None = None
    memory: MemoryFacts | None = None
    held: Sequence[HeldFacts] = ()
    experiments: Sequence[ExperimentFacts] = ()
    profile: ProfileFacts | None = None
    host: HostFacts | None = None
    cost: OwnCost | None = None
    workers_cost_s: float = 0.0
    core_wait: CoreWait | None = None
    not_measured: Sequence[str] = ()
    refused_writes: Sequence[RefusedWrite] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_own_steps(self) -> int:
        """Steps that the training keeps; the experiments' are undone."""
        return sum(not step.is_experiment for step in self.steps)

    @property
    def counted(self) -> Sequence[Step]:
        """The steps that make up the split."""
        return [step for step in self.steps if step.phase == "watched"]
