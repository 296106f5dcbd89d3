"""Side-by-side measurements against the peers, on this machine: scenarios in, records out.

`comparison` compares, `phantom` makes volumes, `ours` and `peers` are the sides, and each scenario is a module with a
frozen dataclass that says what it stands for. Single settings, off and on, are `switches`; whole trainings `race`.
"""

from voxelocity.bench.comparison import Record, comparison_section
from voxelocity.bench.scenarios import NAMES, run_scenario
from voxelocity.bench.switched import run_switch
from voxelocity.bench.switches import SWITCHES

__all__ = ["NAMES", "SWITCHES", "Record", "comparison_section", "run_scenario", "run_switch"]
