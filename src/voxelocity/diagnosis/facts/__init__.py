"""What was seen of a program: records, and how they are read from the files of a recording."""

from voxelocity.diagnosis.facts.machine import HostFacts
from voxelocity.diagnosis.facts.profile import KernelGroup, OperatorTime, ProfileFacts
from voxelocity.diagnosis.facts.read import read_facts
from voxelocity.diagnosis.facts.records import (
    PARTS,
    CallFacts,
    CompileFacts,
    CoreWait,
    Ending,
    ExperimentFacts,
    FetchFacts,
    FileFacts,
    LoaderFacts,
    NetworkFacts,
    OptimizerFacts,
    OwnCost,
    Part,
    Pass,
    Phase,
    ProcessFacts,
    SettingFacts,
    StackFacts,
    Step,
    SyncFacts,
    TransformFacts,
)
from voxelocity.diagnosis.facts.whole import Facts

__all__ = [
    "PARTS",
    "CallFacts",
    "CompileFacts",
    "Ending",
    "ExperimentFacts",
    "Facts",
    "FetchFacts",
    "FileFacts",
    "HostFacts",
    "KernelGroup",
    "LoaderFacts",
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
