"""A run's folder as facts, and what the rules make of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from voxelocity.report.own_run import facts_of_run
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.diagnose.judging import diagnose

PLAN = {
    "data": {"batch_size": 2, "patch": {"shape_voxel": [64, 64, 64]}, "feed": {"num_threads": 1}},
    "network": {"name": "unet"},
    "precision": {"compute": "bfloat16"},
}


def stretch(time_s: float, step: int, *, wait_s: float = 0.4, parts: dict[str, float] | None = None) -> dict[str, Any]:
    """Ten steps in one second."""
    return {
        "event": "steps",
        "time_s": time_s,
        "step": step,
        "epoch": 0,
        "loss": 1.0,
        "learning_rate": 0.01,
        "num_steps": 10,
        "num_images": 20,
        "seconds": 1.0,
        "wait_s": wait_s,
        "parts": parts if parts is not None else {"network": 0.5},
    }


def validation(time_s: float, step: int, seconds: float) -> dict[str, Any]:
    scores = {"mean_dice": 0.5, "dice": {"a": 0.5}, "is_best": True}
    return {"event": "validation", "time_s": time_s, "step": step, "seconds": seconds, **scores}


START = {"event": "run_started", "time_s": 0.1, "environment": {"num_cpus": 4, "torch": "2.13.0", "cpu": "EPYC"}}
FINISH = {
    "event": "run_finished",
    "time_s": 20.0,
    "seconds": 20.0,
    "step": 70,
    "mean_dice": 0.5,
    "num_images": 140,
    "images_per_s": 10.0,
    "wait_share": 0.4,
    "budget_s": None,
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """A run's folder with these events."""

    def make(*events: dict[str, Any], **record: Any) -> Path:
        run = {"command": "voxelocity train DATA -o runs/1", "plan": PLAN, "device": "cpu", "dataset": {"name": "T"}}
        (tmp_path / "run.yaml").write_text(yaml.safe_dump({**run, **record}))
        (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        return tmp_path

    return make


def test_a_run_that_waits_for_its_feed_is_reported_so(write):
    steps = [stretch(3.0 + index, 10 * index + 10) for index in range(7)]
    diagnosis = diagnose(facts_of_run(write(START, *steps, FINISH)))
    assert diagnosis.verdict == (
        "The network spends 40 % of the training time waiting for data: the feed's threads make fewer batches than the "
        "network takes."
    )
    assert [finding.code for finding in diagnosis.causes] == ["VX109"]
    assert diagnosis.causes[0].change == "voxelocity train ... --set data.feed.num_threads=4"
    assert {share.name: round(share.share, 6) for share in diagnosis.split} == {
        "waiting for data": 0.4,
        "forward": 0.5,
        "other": 0.1,
    }
    assert (round(diagnosis.ceiling.resident_s, 6), diagnosis.ceiling.basis) == (0.06, "estimated")
    assert "forward, backward and optimizer separately: all are shown as forward" in diagnosis.not_measured


def test_the_first_stretch_is_warm_up_and_each_stretch_its_steps(write):
    facts = facts_of_run(write(START, stretch(3.0, 10), stretch(4.0, 20), FINISH))
    assert [step.phase for step in facts.steps] == ["warm-up"] * 10 + ["watched"] * 10
    assert (facts.status, facts.seconds, facts.main.versions) == (0, 20.0, {"torch": "2.13.0"})
    assert facts.command == ["voxelocity", "train", "DATA", "-o", "runs/1"]


def test_parts_that_a_run_tells_apart_are_kept_apart(write):
    parts = {"forward": 0.3, "backward": 0.2, "optimizer": 0.05, "augment": 0.03}
    facts = facts_of_run(write(START, stretch(3.0, 10, parts=parts), stretch(4.0, 20, parts=parts), FINISH))
    step = facts.counted[0]
    assert step.parts["backward"] == pytest.approx(0.02)
    assert step.parts["other"] == pytest.approx(0.1 - 0.04 - 0.055)
    assert sum(step.parts.values()) == pytest.approx(step.seconds)
    assert not any(line.startswith("forward, backward") for line in facts.not_measured)


def test_validation_and_checkpoints_are_passes_of_the_watched_time(write):
    checkpoint = {"event": "checkpoint", "time_s": 9.6, "step": 20, "path": "checkpoints/20.pt", "seconds": 0.1}
    stage = {"event": "stage", "time_s": 13.0, "name": "validate", "seconds": 3.0}
    events = [START, stretch(3.0, 10), stretch(4.0, 20), validation(9.0, 20, 5.0), checkpoint, stage, FINISH]
    diagnosis = diagnose(facts_of_run(write(*events)))
    seconds = {share.name: share.seconds for share in diagnosis.split}
    assert (seconds["validation"], seconds["saving"]) == (pytest.approx(8.0), pytest.approx(0.1))
    assert diagnosis.causes[0].code == "VX401"
    assert "--set train.validation_share=" in diagnosis.causes[0].change


def test_of_several_sessions_the_last_one_with_steps_counts(write):
    again = {**START, "time_s": 30.0}
    facts = facts_of_run(write(START, *[stretch(3.0 + i, 10 * i + 10) for i in range(3)], again, stretch(40.0, 40)))
    assert facts.counted[0].start_s == pytest.approx(3.0)
    facts = facts_of_run(write(START, stretch(3.0, 10), again, stretch(40.0, 20), stretch(41.0, 30)))
    assert facts.counted[0].start_s == pytest.approx(40.0)


def test_a_run_that_was_interrupted_is_reported_by_what(write):
    stop = {"event": "interrupted", "time_s": 6.0, "signal": 15}
    steps = [stretch(3.0, 10, wait_s=0.0), stretch(4.0, 20, wait_s=0.0)]
    verdict = diagnose(facts_of_run(write(START, *steps, stop))).verdict
    assert verdict.endswith("; the program was ended by SIGTERM after 6.0 s.")


def test_a_run_before_its_first_step_has_a_verdict_too(write):
    facts = facts_of_run(write(START, {"event": "stage", "time_s": 2.0, "name": "plan", "seconds": 1.9}))
    assert diagnose(facts).verdict.startswith("No training step was seen in 2.0 s: ")


def test_a_gpu_run_in_bfloat16_gets_no_finding_on_its_precision(write):
    steps = [stretch(3.0 + index, 10 * index + 10, wait_s=0.0, parts={"network": 1.0}) for index in range(4)]
    facts = facts_of_run(write(START, *steps, FINISH, device="cuda:0"))
    assert (facts.settings.device, facts.settings.autocast) == ("cuda", "bfloat16")
    assert diagnose(facts).findings == ()


def test_a_plan_of_another_version_is_read_as_far_as_it_goes(write):
    facts = facts_of_run(write(START, stretch(3.0, 10), stretch(4.0, 20), plan={"data": "elsewhere"}))
    assert facts.loaders[0].num_workers == 0
    assert len(facts.counted) == 10


def test_a_command_that_no_shell_can_read_is_kept_as_it_is(write):
    assert list(facts_of_run(write(START, command="it's not closed")).command) == ["it's not closed"]


def test_a_folder_that_holds_no_run_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none does not exist; name the folder of a run"):
        facts_of_run(tmp_path / "none")
