"""The page of predictions: times, volumes, slices, and what could not be predicted."""

from pathlib import Path

import numpy as np

from shared.page import Page, assert_accessible, assert_golden, assert_safe
from voxelocity.core.volume import Grid, Volume
from voxelocity.infer import PredictedScan
from voxelocity.infer.page import predictions_document
from voxelocity.report import cut_slices
from voxelocity.report.records import SliceFigure
from voxelocity_observe.document import write_page

NAMES = ("background", "liver", "left <kidney>")


def predicted(case_id, seconds, *, num_liver):
    return PredictedScan(
        case_id=case_id,
        path=Path(f"out/{case_id}.nii.gz"),
        seconds=seconds,
        stage_seconds={"decode": 0.5, "prepare": 0.25, "network": 3.0, "blend": 0.25, "restore": 0.5, "write": 0.5},
        peak_bytes=3 << 30,
        device="cuda",
        runtime="eager",
        num_voxels={"liver": num_liver, "left <kidney>": 0},
        voxel_ml=0.002,
    )


def figure(case_id):
    classes = np.zeros((20, 24, 16), np.uint8)
    classes[5:12, 6:15, 4:9] = 1
    image = np.random.default_rng(0).standard_normal((1, *classes.shape)).astype(np.float32)
    scan = Volume(case_id=case_id, image=image, label=None, grid=Grid.of(classes.shape, np.diag([2.0, 2.0, 5.0, 1.0])))
    return SliceFigure(title=case_id, stacks=cut_slices(scan, classes))


def make_page(tmp_path, **changes):
    values = {
        "scans": [predicted("a", 5.0, num_liver=750_000), predicted("b <i>", 2.5, num_liver=600_000)],
        "figures": [figure("a")],
        "class_names": NAMES,
        "failures": {"c": "decode: case 'c': the file is truncated"},
        "warnings": ["predict: case 'b <i>' may be predicted poorly: its spacing along z is 9 mm"],
        "seconds": 7.5,
        **changes,
    }
    document = predictions_document(values.pop("scans"), values.pop("figures"), **values)
    return Page(write_page(document, tmp_path / "predictions.html").read_text(encoding="utf-8"))


def test_the_page_reads_as_before(tmp_path):
    page = make_page(tmp_path)
    assert_golden(page, "predictions")
    assert_safe(page)
    assert_accessible(page)
    assert "show-prediction" in page.source
    assert "show-difference" not in page.source.partition("</style>")[2], "without a truth there is none"


def test_a_command_without_any_prediction_still_has_a_page(tmp_path):
    page = make_page(tmp_path, scans=[], figures=[])
    assert_safe(page)
    assert "0 scans predicted" in page.outline
    assert "the file is truncated" in page.outline
