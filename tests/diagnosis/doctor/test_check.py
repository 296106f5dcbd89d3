from __future__ import annotations

import json

from voxelocity.diagnosis.doctor import Check, CheckUp

FINE = Check(section="disk", name="room", level="ok", found="much")
STOP = Check(section="torch", name="torch", level="problem", found="none", stops_training=True)


def test_one_line_that_stops_training_is_enough_to_stop_it():
    assert CheckUp(verdict="", checks=[FINE]).can_train
    assert not CheckUp(verdict="", checks=[FINE, STOP]).can_train


def test_plain_form_counts_levels_and_survives_json():
    plain = CheckUp(verdict="none", checks=[FINE, STOP, FINE]).to_plain()
    assert plain["counts"] == {"ok": 2, "note": 0, "warning": 0, "problem": 1}
    assert json.loads(json.dumps(plain)) == plain
    assert plain["checks"][1]["found"] == "none"
