"""The rule engine: data set statistics and machine facts in, choices with reasons out.

- `make` goes from cases to a plan; `machine` and `fingerprint` gather what rules may know, `facts` holds it.
- `rules` are the rules in the order of a voxel's path; those with much to say have a module of their own:
  `patch_rule` (with `patch_fit`), `size_rule` (with `step_forecast` and `cards`), `precision_rule`,
  `cache_rule`, `memory_rule`, `start_rule` (with `foreign_source`): what a run takes from the model it starts from.
- `step_timing` measures, `tuned` has what `voxelocity tune` found.
- `taken_over` has what wins over rules: of other runs, a model to start from, or nnU-Net's plans (`plans_file`).
- `config` is the settled plan. `memory_estimate` is `plan --memory`; `absent_classes` warns.
"""

from voxelocity.core.requests.plan import DeviceChoice
from voxelocity.planning.absent_classes import absent_classes, absent_from_plan
from voxelocity.planning.config import PLACES, Plan, check_code, keys_of_record, steps_of_passes, without_places
from voxelocity.planning.facts import Start
from voxelocity.planning.machine import Machine, survey
from voxelocity.planning.make import Planned, make_plan, model_spec, plan_cases, read_overrides
from voxelocity.planning.taken_over import SharedKeys
from voxelocity.planning.tuned import CHANGE_RESULTS, Tuned, keep_tuned, read_tuned, results_key, tuned_key

__all__ = [
    "absent_classes",
    "absent_from_plan",
    "CHANGE_RESULTS",
    "PLACES",
    "DeviceChoice",
    "Machine",
    "Plan",
    "Planned",
    "SharedKeys",
    "Start",
    "Tuned",
    "check_code",
    "keep_tuned",
    "keys_of_record",
    "make_plan",
    "model_spec",
    "plan_cases",
    "read_overrides",
    "read_tuned",
    "results_key",
    "steps_of_passes",
    "survey",
    "tuned_key",
    "without_places",
]
