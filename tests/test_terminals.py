"""Recorded terminals: what commands print, at five widths, from made-up records; see `golden/terminal-*.txt`."""

import difflib
import io
import os
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from diagnose.doctor.test_terminal import CHECK_UP
from monitor.conftest import make_gpu, make_record, make_samples
from recipes.test_story import planted_story
from report.test_comparison import OURS, PLAIN
from rich.markdown import Markdown

from shared.diagnoses import data_bound
from voxelocity.core.records import CaseScore
from voxelocity.infer.evaluation import evaluate, evaluation_view
from voxelocity.report import comparison_document, plan_summary, score_table, volume_table
from voxelocity.training.progress import TerminalProgress
from voxelocity_lab.recipes.demo.page import story_document
from voxelocity_observe.core.clock import FakeClock
from voxelocity_observe.core.console import PlainConsole
from voxelocity_observe.diagnose import findings
from voxelocity_observe.diagnose.doctor import show
from voxelocity_observe.diagnose.render.screen import DiagnosisFiles, print_screen
from voxelocity_observe.document import document_view
from voxelocity_observe.monitor.summary import summary_lines

_GOLDEN = Path(__file__).parent / "golden"
_PLAN = {
    "data": {
        "patch": {"shape_voxel": [64, 96, 96]}, "prepare": {"spacing_mm": [1.0, 0.8, 0.8]}, "batch_size": 2,
        "cache": {"tier": "memory"},
    },
    "network": {"name": "unet", "widths": [32, 64, 128, 256, 320]},
    "precision": {"compute": "bfloat16", "compile": "none", "step_graph": False},
    "optimizer": {"name": "muon", "learning_rate": 0.008},
    "train": {"time_budget_s": 600.0, "steps": 0, "target_dice": 0.0},
}  # fmt: skip
_DATASET = {
    "name": "Task04_Hippocampus", "channels": ["MRI"], "classes": ["background", "anterior", "posterior"],
    "num_cases": 208, "num_training": 166, "num_validation": 42, "fold": 0,
}  # fmt: skip
_SCORES = [
    CaseScore(case_id=f"hippocampus_{number:03d}", dice={"anterior": 0.9 - 0.01 * number, "posterior": 0.85},
              hd95_mm={"anterior": 1.0, "posterior": 1.41})
    for number in range(12)
]  # fmt: skip


def train(console, tmp_path):
    console.print(plan_summary({"dataset": _DATASET, "fingerprint": {}, "plan": _PLAN}))
    progress = TerminalProgress(console, FakeClock())
    progress.show_validation(400, 0.84, True, num_cases=16, num_absent=0)
    progress.show_steps(step=1200, loss=0.31, images_per_s=42.0, wait_share=0.004, progress=0.5, remaining_s=300.0)
    console.print(progress._bar.get_renderable())
    console.print(score_table(_SCORES))


def evaluation(tmp_path):
    for folder, edge in (("predicted", 6), ("truth", 7)):
        (tmp_path / folder).mkdir()
        for number in range(3):
            voxels = np.zeros((10, 10, 10), np.uint8)
            voxels[2:edge, 2:8, 2:8] = 1
            voxels[2:edge, 2 : 4 + number, 2:4] = 2
            nib.save(nib.Nifti1Image(voxels, np.eye(4)), tmp_path / folder / f"case_{number}.nii.gz")
    return evaluate(tmp_path / "predicted", tmp_path / "truth")


def predict(console, tmp_path):
    console.print(volume_table({"anterior": [(1000, 1.0), (2000, 2.0)], "posterior": [(900, 0.9), (0, 0.0)]}))


def demo(console, tmp_path):
    console.rule("For comparison: MONAI's own guide to fast training, applied by hand")
    console.print(story_document(planted_story(tmp_path / "demo")).verdict)


def diagnose(console, tmp_path):
    print_screen(data_bound(), console, files=DiagnosisFiles(page=Path("diagnosis/diagnosis.html")))


SCREENS = {
    "train": train,
    "evaluate, train --folds": lambda console, tmp_path: console.print(evaluation_view(evaluation(tmp_path))),
    "predict": predict,
    "doctor": lambda console, tmp_path: show(CHECK_UP, console),
    "demo": demo,
    "diagnose": diagnose,
    "report RUN RUN": lambda console, tmp_path: console.print(document_view(comparison_document([PLAIN, OURS], "Two"))),
    "explain": lambda console, tmp_path: console.print(Markdown(findings.page("VX101"))),
    "monitor": lambda console, tmp_path: console.print(
        *summary_lines(make_record(make_samples(60, gpus=[make_gpu()])), Path("monitor/monitor.html")), sep="\n"
    ),
}


@pytest.mark.parametrize("width", [60, 80, 100, 101, 140])
def test_terminals_read_as_agreed(width, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    console = PlainConsole(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    for name, screen in SCREENS.items():
        console.rule(name)
        screen(console, Path())
    shown = [line.rstrip() for line in console.file.getvalue().splitlines()]
    path = _GOLDEN / f"terminal-{width}.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text("\n".join(shown) + "\n", encoding="utf-8")
    kept = path.read_text(encoding="utf-8").splitlines()
    changes = list(difflib.unified_diff(kept, shown, str(path), "the terminal", lineterm="", n=1))
    assert not changes, "\n".join([*changes, "If this is meant, UPDATE_GOLDEN=1 takes it over."])
