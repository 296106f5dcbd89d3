"""What this machine has for training, what is missing, and what each costs.

Probes (`gpu`, `torch_build`, `host`, `disk`, `installed`) see and judge nothing; `checks` judge what was seen and
ask the machine nothing; `examine` does both in turn.
"""

from voxelocity.diagnosis.doctor.check import LEVELS, Check, CheckUp, Level
from voxelocity.diagnosis.doctor.terminal import show
from voxelocity.diagnosis.doctor.visit import examine, judge, look

__all__ = ["LEVELS", "Check", "CheckUp", "Level", "examine", "judge", "look", "show"]
