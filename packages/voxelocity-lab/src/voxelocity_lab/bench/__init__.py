"""Side-by-side measurements against the peers, on this machine: scenarios in, records out.

`comparison` compares, `phantom` makes volumes, `streams` and `peers` make batches, and each scenario is a module with a
frozen dataclass that says what it stands for; `scenarios` lists them. `switched` turns single settings off and on;
`race` compares whole trainings.
"""

from voxelocity_lab.bench.comparison import comparison_section
from voxelocity_lab.bench.scenarios import NAMES, run_scenario
from voxelocity_lab.bench.switched import run_switch
from voxelocity_lab.bench.switches import SWITCHES

__all__ = ["NAMES", "SWITCHES", "comparison_section", "run_scenario", "run_switch"]
