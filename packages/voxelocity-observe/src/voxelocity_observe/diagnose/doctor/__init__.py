"""What this machine has for training, what is missing, and what each costs.

`probes` and `disk` look at the machine and judge nothing; `hardware_checks` and `software_checks` judge what was found
and do not look at the machine; `run` does both.
"""

from voxelocity_observe.diagnose.doctor.records import Check, CheckUp
from voxelocity_observe.diagnose.doctor.run import examine, judge, probe
from voxelocity_observe.diagnose.doctor.terminal import show

__all__ = ["Check", "CheckUp", "examine", "judge", "probe", "show"]
