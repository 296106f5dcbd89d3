import dataclasses
import math

from shared.diagnoses import NAMES, example
from voxelocity_observe.diagnose.render.page import steps_chart


def test_steps_without_a_number_have_no_column():
    steps = list(example(NAMES[0]).facts.counted)
    whole = steps_chart(steps[1:])
    odd = dataclasses.replace(steps[0], parts={**steps[0].parts, "forward": math.nan})
    assert steps_chart([odd, *steps[1:]]) == whole
