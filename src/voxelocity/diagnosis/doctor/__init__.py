"""What this machine has for training, what is missing, and what each costs.

Probes (`gpu`, `torch_build`, `host`, `disk`, `installed`) look at the machine and judge nothing; `checks` judge what
was seen and do not look at the machine; `examine` does both.
"""

from voxelocity.diagnosis.doctor.check import LEVELS, Check, CheckUp, Level
from voxelocity.diagnosis.doctor.terminal import show
from voxelocity.diagnosis.doctor.visit import examine, judge, look

__all__ = ["LEVELS", "Check", "CheckUp", "Level", "examine", "judge", "look", "show"]
