"""Side-by-side measurements against the peers, on this machine: scenarios in, records out.

`paired` compares, `phantom` makes volumes, `ours` and the `*_side` modules are the sides, and each scenario is a module
with a frozen dataclass that says what it stands for. Single settings, off and on, are `switches`.
"""

from voxelocity.bench.record import Record, comparison_section
from voxelocity.bench.scenarios import NAMES, run_scenario
from voxelocity.bench.switch_report import SwitchReport
from voxelocity.bench.switch_run import run_switch
from voxelocity.bench.switches import SWITCHES

__all__ = ["NAMES", "SWITCHES", "Record", "SwitchReport", "comparison_section", "run_scenario", "run_switch"]
