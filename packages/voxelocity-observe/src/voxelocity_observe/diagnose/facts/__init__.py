"""The observed program, as plain records. Nothing here judges; rules do, and they read nothing else.

A recorder inside the program writes one JSON object per line. A record holds the object of the event that it declares
(`events`), field by field. Seconds are the host's unless a name says otherwise.
"""

from voxelocity_observe.diagnose.facts.program import (
    OWN_FEED,
    CallFacts,
    CompileFacts,
    FetchFacts,
    FileFacts,
    HeldFacts,
    LoaderFacts,
    MemoryFacts,
    NetworkFacts,
    OptimizerFacts,
    SettingFacts,
    StackFacts,
    SyncFacts,
    TransformFacts,
)
from voxelocity_observe.diagnose.facts.read import read_facts
from voxelocity_observe.diagnose.facts.whole import (
    PARTS,
    CoreWait,
    Ending,
    ExperimentFacts,
    Facts,
    HostFacts,
    KernelGroup,
    OperatorTime,
    OwnCost,
    Pass,
    ProcessFacts,
    ProfileFacts,
    RankFacts,
    Step,
)

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
    "Pass",
    "ProcessFacts",
    "ProfileFacts",
    "RankFacts",
    "SettingFacts",
    "StackFacts",
    "Step",
    "SyncFacts",
    "TransformFacts",
    "read_facts",
]
