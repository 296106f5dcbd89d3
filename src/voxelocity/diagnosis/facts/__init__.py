"""The observed program, as plain records. Nothing here judges; rules do, and they read nothing else.

A recorder inside the program writes one JSON object per line. A record holds the object of the event that its
docstring names, field by field. Seconds are the host's unless a name says otherwise.
"""

from voxelocity.diagnosis.facts.data import OWN_FEED, FetchFacts, FileFacts, LoaderFacts, TransformFacts
from voxelocity.diagnosis.facts.machine import HostFacts
from voxelocity.diagnosis.facts.profile import KernelGroup, OperatorTime, ProfileFacts
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
from voxelocity.diagnosis.facts.read import read_facts
from voxelocity.diagnosis.facts.recording import CoreWait, Ending, ExperimentFacts, OwnCost, ProcessFacts
from voxelocity.diagnosis.facts.steps import PARTS, Part, Pass, Phase, Step
from voxelocity.diagnosis.facts.whole import Facts

__all__ = [
    "OWN_FEED",
    "PARTS",
    "CallFacts",
    "CompileFacts",
    "Ending",
    "ExperimentFacts",
    "Facts",
    "FetchFacts",
    "FileFacts",
    "HeldFacts",
    "HostFacts",
    "KernelGroup",
    "LoaderFacts",
    "MemoryFacts",
    "NetworkFacts",
    "OperatorTime",
    "OptimizerFacts",
    "CoreWait",
    "OwnCost",
    "Part",
    "Pass",
    "Phase",
    "ProcessFacts",
    "ProfileFacts",
    "SettingFacts",
    "StackFacts",
    "Step",
    "SyncFacts",
    "TransformFacts",
    "read_facts",
]
