"""From facts to a diagnosis: order, sums, and what is a cause."""

from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity.diagnosis.facts import CallFacts, ExperimentFacts, FileFacts, OwnCost, TransformFacts
from voxelocity.diagnosis.judging.judge import CAUSE_SHARE, diagnose
from voxelocity.diagnosis.rules import Found, rule


def planted(code, saves_s, *, pool="data", names_work=False, is_cause=True, is_context=False):
    """A rule that always finds the same."""

    @rule(code, f"Cause {code}", pool=pool, names_work=names_work, is_context=is_context)
    def always(facts):
        return Found(cause="", evidence=(), saves_s=saves_s, change="", is_cause=is_cause)

    return always


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_clean_program_has_no_finding_at_all(clean, clean_gpu, device):
    diagnosis = diagnose(clean if device == "cpu" else clean_gpu)
    assert diagnosis.findings == ()
    assert diagnosis.verdict.startswith("Nothing holds this program back: the network computes 99 % of the time; ")


def test_what_saves_most_comes_first_and_trifles_are_no_causes(clean, make):
    waiting = replace(clean, steps=make.steps({"wait": 0.1, "forward": 0.1}))
    rules = [planted("A", 2.0), planted("B", 6.0), planted("C", 0.5), planted("D", 9.0, is_cause=False)]
    diagnosis = diagnose(waiting, rules=rules)
    assert [one.code for one in diagnosis.findings] == ["B", "A", "D", "C"]
    assert [one.code for one in diagnosis.causes] == ["B", "A"]
    assert CAUSE_SHARE * 20.0 > 0.5


def test_findings_of_one_pool_never_save_more_than_it_holds(clean, make):
    waiting = replace(clean, steps=make.steps({"wait": 0.1, "forward": 0.1}))
    diagnosis = diagnose(waiting, rules=[planted("A", 9.0), planted("B", 8.0), planted("C", 7.0)])
    # 20 s of steps, 9.9 s without data.
    assert [one.saves_s for one in diagnosis.findings] == pytest.approx([9.0, 1.1, 0.0])
    assert [one.code for one in diagnosis.causes] == ["A", "B"]
    assert diagnosis.findings[1].evidence == ("alone it would save 8.0 s; the causes listed above leave 1.1 s of that",)


def test_findings_of_different_pools_do_not_take_from_each_other(clean, make):
    facts = replace(clean, steps=make.steps({"wait": 0.1, "forward": 0.1}))
    diagnosis = diagnose(facts, rules=[planted("A", 9.0), planted("B", 8.0, pool="compute")])
    assert [one.saves_s for one in diagnosis.findings] == [9.0, 8.0]


def test_the_slow_work_itself_goes_before_a_place_that_could_hide_it(clean, make):
    facts = replace(clean, steps=make.steps({"wait": 0.1, "forward": 0.1}))
    diagnosis = diagnose(facts, rules=[planted("A", 9.0), planted("B", 7.0, names_work=True)])
    assert [one.code for one in diagnosis.findings] == ["B", "A"]
    diagnosis = diagnose(facts, rules=[planted("A", 9.0), planted("B", 5.0, names_work=True)])
    assert [one.code for one in diagnosis.findings] == ["A", "B"]


def test_what_other_programs_do_never_comes_before_the_programs_own_cause(clean, make):
    facts = replace(clean, steps=make.steps({"wait": 0.1, "forward": 0.1}))
    rules = [planted("A", 15.0, pool="machine", is_context=True), planted("B", 1.0), planted("C", 9.0, is_cause=False)]
    diagnosis = diagnose(facts, rules=rules)
    assert [one.code for one in diagnosis.findings] == ["B", "A", "C"]
    assert diagnosis.verdict == (
        "The network spends 50 % of the training time waiting for data: cause B; the machine holds it back, too: "
        "cause A."
    )
    assert diagnose(facts, rules=rules[:1]).verdict.startswith("The machine holds this program back: cause A")


def test_a_cause_that_nobody_can_put_a_figure_on_goes_before_trifles(clean, make):
    facts = replace(clean, steps=make.steps({"wait": 0.1, "forward": 0.1}))
    diagnosis = diagnose(facts, rules=[planted("A", 1.0, pool="compute"), planted("B", None)])
    assert [one.code for one in diagnosis.causes] == ["B", "A"]


def test_a_slow_collate_function_in_the_own_thread_is_named_before_the_thread(waiting, make):
    """Workers would hide it where cores are free; the function is what is slow."""
    loader = make.loader(num_workers=0, collate="train.collate", collate_where="train.py:9")
    facts = waiting(0.06, loader, make.fetch(batch_s=0.06, collate_share=0.9, worker=-1))
    diagnosis = diagnose(facts)
    assert [one.code for one in diagnosis.findings][:2] == ["VX111", "VX101"]
    assert "The network spends 37 % of the training time waiting for data: the function that puts" in diagnosis.verdict


def test_data_rules_that_fire_together_stay_below_the_ceiling(waiting, make):
    """No worker, gunzip, repeated work, a slow random transform and a slow collate function at once."""
    chain = [
        TransformFacts(
            name=name, library="monai", num_calls=200, self_s=1.4, self_cpu_s=1.4, is_random=is_random, order=order
        )
        for order, (name, is_random) in enumerate([("LoadImaged", False), ("Rand3DElasticd", True)])
    ]
    facts = waiting(
        0.06,
        make.loader(num_workers=0, collate="train.collate"),
        make.fetch(batch_s=0.06, collate_share=0.4, worker=-1),
        transforms=chain,
        stacks=[make.stack("wait", "gunzip", 60), make.stack("wait", "transform", 40)],
    )
    diagnosis = diagnose(facts)
    data = [one for one in diagnosis.findings if one.code.startswith("VX1")]
    assert len(data) >= 4
    assert sum(one.saves_s for one in data) <= 16.0 - 100 * diagnosis.ceiling.resident_s + 1e-9


def test_what_was_not_measured_is_said_with_its_reason(clean):
    note = ExperimentFacts(name="resident batch", unit="step", seconds=[], note="the loop has no batch of its own")
    facts = replace(
        clean,
        experiments=[note],
        host=None,
        not_measured=["NVML"],
        files=FileFacts(kinds={}, num_opens=1, num_files=1, read_bytes=1),
    )
    missing = diagnose(facts).not_measured
    assert missing[0] == "NVML"
    assert ("the ceiling (the loop has no batch of its own): it is estimated from the steps' parts") in missing
    assert "the machine while the program ran: cores, memory, other programs" in missing
    assert "which lines the time went to: no stacks were taken" in missing
    assert "how fast the storage reads the program's files" in missing


def test_that_there_was_no_experiment_and_what_the_ceiling_rests_on_is_one_line(clean):
    note = "the ceiling: no experiment was made because none was asked for"
    facts = replace(clean, experiments=[], not_measured=[note])
    assert [text for text in diagnose(facts).not_measured if "ceiling" in text] == [
        f"{note}; it is estimated from the steps' parts"
    ]


def test_a_change_of_load_among_the_experiments_is_told(clean, make):
    later = [replace(step, phase="unchanged", seconds=step.seconds * 1.6) for step in clean.steps[:3]]
    diagnosis = diagnose(replace(clean, steps=[*clean.steps, *later]))
    (told,) = [text for text in diagnosis.not_measured if text.startswith("a constant load on the machine")]
    assert "took 1.6 times as long during the experiments" in told
    assert diagnosis.verdict.endswith(
        "; the machine's load changed during the measurement, so take the gains as rough."
    )
    assert "load changed" not in diagnose(clean).verdict


def test_the_own_cost_is_a_share_and_unknown_where_it_was_not_noted(clean):
    assert diagnose(replace(clean, cost=OwnCost(seconds=0.1, of_s=10.0))).own_share == pytest.approx(0.01)
    assert diagnose(clean).own_share is None


def test_what_watching_takes_in_workers_is_a_share_of_all_cores(clean):
    facts = replace(clean, cost=OwnCost(seconds=0.1, of_s=10.0), workers_cost_s=4.0)
    since_s = clean.seconds - clean.steps[0].start_s
    assert diagnose(facts).own_share == pytest.approx(0.01 + 4.0 / (8 * since_s))


def test_a_diagnosis_of_everything_at_once_promises_less_than_all(clean_gpu, make):
    """Savings of a program with many faults leave time for what it has to do."""
    facts = replace(
        clean_gpu,
        steps=make.steps({"wait": 0.1, "copy": 0.02, "forward": 0.04, "backward": 0.04, "other": 0.02}),
        settings=replace(clean_gpu.settings, autocast="", allow_tf32_cudnn=False, detect_anomaly=True),
        loaders=[make.loader(num_workers=0)],
        fetches=[make.fetch(batch_s=0.1, worker=-1)],
        calls=[CallFacts(call="gc.collect", where="a.py:1", line="", count=100, num_steps=100, seconds=1.0)],
        passes=[make.between("validation", 6.0, at=50, num_forwards=10), make.between("saving", 2.0, at=60)],
    )
    diagnosis = diagnose(facts)
    whole_s = sum(one.seconds for one in diagnosis.split)
    assert {"VX101", "VX202", "VX301", "VX302", "VX331", "VX361", "VX401", "VX411"} <= {
        one.code for one in diagnosis.findings
    }
    assert 0.0 < sum(one.saves_s or 0.0 for one in diagnosis.causes) < whole_s
