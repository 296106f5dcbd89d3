"""`metrics.csv`: a row for each stretch and validation."""

import csv
import math
from pathlib import Path

from voxelocity.report import RunFacts, StepRecord, ValidationRecord
from voxelocity.report.records import DatasetFacts
from voxelocity.training.metrics_table import write_metrics


def test_a_class_in_no_case_has_an_empty_cell_and_is_counted(tmp_path):
    steps = StepRecord(
        time_s=1.0, step=5, epoch=0, loss=0.5, learning_rate=1e-3, num_steps=5, num_images=10, seconds=2.0, wait_s=0.5
    )
    dice = {"liver": 0.8, "cyst": math.nan}
    validation = ValidationRecord(time_s=2.0, step=5, seconds=1.0, mean_dice=0.8, dice=dice, is_best=True)
    facts = RunFacts(
        folder=Path("run"),
        status="finished",
        dataset=DatasetFacts(name="d"),
        steps=(steps,),
        validations=(validation,),
    )
    write_metrics(facts, tmp_path / "metrics.csv")
    with (tmp_path / "metrics.csv").open() as file:
        first, second = csv.DictReader(file)
    assert (first["images_per_s"], first["mean_dice"], first["num_absent_classes"]) == ("5.0", "", "")
    assert (second["mean_dice"], second["num_absent_classes"]) == ("0.8", "1")
    assert (second["dice_liver"], second["dice_cyst"]) == ("0.8", "")
