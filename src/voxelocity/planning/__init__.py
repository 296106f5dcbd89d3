"""The rule engine: data set statistics and machine facts in, choices with reasons out."""

from voxelocity.planning.absent_classes import absent_classes, absent_from_plan
from voxelocity.planning.config import PLACES, Plan, check_code, keys_of_record, without_places
from voxelocity.planning.machine import DeviceChoice, Machine, survey
from voxelocity.planning.make import Planned, SharedKeys, make_plan, model_spec, read_overrides
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
    "Tuned",
    "check_code",
    "keep_tuned",
    "keys_of_record",
    "make_plan",
    "model_spec",
    "read_overrides",
    "read_tuned",
    "results_key",
    "survey",
    "tuned_key",
    "without_places",
]
