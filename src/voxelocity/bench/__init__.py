"""Side-by-side measurements against the peers, on this machine: scenarios in, records out.

`paired` compares, `phantom` makes volumes, `ours` and the `*_side` modules are the sides, and each scenario is a module
with a frozen dataclass that says what it stands for.
"""

from voxelocity.bench.record import Record, comparison_table
from voxelocity.bench.scenarios import NAMES, run_scenario

__all__ = ["NAMES", "Record", "comparison_table", "run_scenario"]
