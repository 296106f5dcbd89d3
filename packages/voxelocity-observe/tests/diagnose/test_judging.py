from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity_observe.diagnose.facts import (
    CallFacts,
    Ending,
    ExperimentFacts,
    FileFacts,
    HostFacts,
    OwnCost,
    TransformFacts,
)
from voxelocity_observe.diagnose.judging import CAUSE_SHARE, diagnose
from voxelocity_observe.diagnose.rules import Found, rule


def planted(code, saves_s, *, pool="data", names_work=False, is_cause=True, **marks):
    """A rule that always finds the same."""

    @rule(code, f"Cause {code}", pool=pool, names_work=names_work, **marks)
    def always(facts):
        return Found(cause="", evidence=(), saves_s=saves_s, change="", is_cause=is_cause)

    return always


@pytest.fixture
def half_waiting(clean, make):
    """A program that waits for data half of the time, for 10 s."""
    return replace(clean, steps=make.steps({"wait": 0.1, "forward": 0.1}))


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_clean_program_has_no_finding_at_all(clean, clean_gpu, device):
    diagnosis = diagnose(clean if device == "cpu" else clean_gpu)
    assert diagnosis.findings == ()
    assert diagnosis.verdict.startswith("Nothing holds this program back: the network computes 99 % of the time; ")


def test_what_saves_most_comes_first_and_trifles_are_no_causes(half_waiting):
    rules = [planted("A", 2.0), planted("B", 6.0), planted("C", 0.5), planted("D", 9.0, is_cause=False)]
    diagnosis = diagnose(half_waiting, rules=rules)
    assert [finding.code for finding in diagnosis.findings] == ["B", "A", "D", "C"]
    assert [finding.code for finding in diagnosis.causes] == ["B", "A"]
    assert CAUSE_SHARE * 20.0 > 0.5


def test_findings_of_one_pool_never_save_more_than_it_holds(half_waiting):
    diagnosis = diagnose(half_waiting, rules=[planted("A", 9.0), planted("B", 8.0), planted("C", 7.0)])
    # 20 s of steps, 9.9 s without data.
    assert [finding.saves_s for finding in diagnosis.findings] == pytest.approx([9.0, 1.1, 0.0])
    assert [finding.code for finding in diagnosis.causes] == ["A", "B"]
    assert diagnosis.findings[1].evidence == ("alone it would save 8.0 s; the causes listed above leave 1.1 s of that",)


def test_findings_of_different_pools_do_not_take_from_each_other(half_waiting):
    diagnosis = diagnose(half_waiting, rules=[planted("A", 9.0), planted("B", 8.0, pool="compute")])
    assert [finding.saves_s for finding in diagnosis.findings] == [9.0, 8.0]


def test_the_slow_work_itself_goes_before_a_place_that_could_hide_it(half_waiting):
    diagnosis = diagnose(half_waiting, rules=[planted("A", 9.0), planted("B", 7.0, names_work=True)])
    assert [finding.code for finding in diagnosis.findings] == ["B", "A"]
    diagnosis = diagnose(half_waiting, rules=[planted("A", 9.0), planted("B", 5.0, names_work=True)])
    assert [finding.code for finding in diagnosis.findings] == ["A", "B"]


def test_what_any_program_would_gain_goes_behind_a_fault_that_saves_a_quarter_as_much(half_waiting):
    upgrade = planted("A", 8.0, pool="compute", is_upgrade=True)
    for saves_s, first in ((2.5, "B"), (1.5, "A")):
        assert diagnose(half_waiting, rules=[upgrade, planted("B", saves_s)]).causes[0].code == first


def test_what_other_programs_do_never_comes_before_the_programs_own_cause(half_waiting):
    rules = [planted("A", 15.0, pool="machine", is_context=True), planted("B", 1.0), planted("C", 9.0, is_cause=False)]
    diagnosis = diagnose(half_waiting, rules=rules)
    assert [finding.code for finding in diagnosis.findings] == ["B", "A", "C"]
    assert diagnosis.verdict == (
        "The network spends 50 % of the training time waiting for data: cause B; the machine also slows it down: "
        "cause A."
    )
    assert diagnose(half_waiting, rules=rules[:1]).verdict.startswith("The machine slows this program down: cause A")


def test_a_cause_that_nobody_can_put_a_figure_on_goes_before_trifles(half_waiting):
    diagnosis = diagnose(half_waiting, rules=[planted("A", 1.0, pool="compute"), planted("B", None)])
    assert [finding.code for finding in diagnosis.causes] == ["B", "A"]


def test_a_slow_collate_function_in_the_own_thread_is_named_before_the_thread(waiting, make):
    """Workers would hide it where cores are free; the function is what is slow."""
    loader = make.loader(num_workers=0, collate="train.collate", collate_where="train.py:9")
    facts = waiting(0.06, loader, make.fetch(batch_s=0.06, collate_share=0.9, worker=-1))
    diagnosis = diagnose(facts)
    assert [finding.code for finding in diagnosis.findings][:2] == ["VX111", "VX101"]
    assert "The network spends 38 % of the training time waiting for data: the function that puts" in diagnosis.verdict


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
    data = [finding for finding in diagnosis.findings if finding.code.startswith("VX1")]
    assert len(data) >= 4
    assert sum(finding.saves_s for finding in data) <= 16.0 - 100 * diagnosis.ceiling.resident_s + 1e-9


def test_what_was_not_measured_is_said_with_its_reason(clean):
    note = ExperimentFacts(name="resident batch", unit="step", seconds=[], note="the loop has no batch of its own")
    facts = replace(
        clean,
        experiments=[note],
        host=None,
        not_measured=["NVML"],
        files=FileFacts(kinds={}, num_opens=1, num_files=1, read_bytes=1, unseen=("itk", "lmdb")),
    )
    missing = diagnose(facts).not_measured
    assert missing[0] == "NVML"
    assert ("the ceiling (the loop has no batch of its own): it is estimated from the steps' parts") in missing
    assert "the machine while the program ran: cores, memory, other programs" in missing
    assert "where in the code the time was spent: no stacks were sampled" in missing
    assert "how fast the storage reads the program's files" in missing
    assert "files that libraries may have opened by themselves: itk, lmdb" in missing


def test_that_there_was_no_experiment_and_what_the_ceiling_rests_on_is_one_line(clean):
    note = "the ceiling: no experiment was done because none was requested"
    facts = replace(clean, experiments=[], not_measured=[note])
    assert [text for text in diagnose(facts).not_measured if "ceiling" in text] == [
        f"{note}; it is estimated from the steps' parts"
    ]


def test_a_change_of_load_among_the_experiments_is_told(clean, make):
    later = [replace(step, phase="unchanged", seconds=step.seconds * 1.6) for step in clean.steps[:3]]
    diagnosis = diagnose(replace(clean, steps=[*clean.steps, *later]))
    (told,) = [text for text in diagnosis.not_measured if text.startswith("a constant load on the machine")]
    assert "took 1.6 times as long during the experiments" in told
    assert diagnosis.verdict.endswith("; the machine's load changed during the measurement, so the gains are rough.")
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
    whole_s = sum(share.seconds for share in diagnosis.split)
    assert {"VX101", "VX202", "VX301", "VX302", "VX331", "VX361", "VX401", "VX411"} <= {
        finding.code for finding in diagnosis.findings
    }
    assert 0.0 < sum(finding.saves_s or 0.0 for finding in diagnosis.causes) < whole_s


def verdict(facts, **changes):
    return diagnose(replace(facts, **changes)).verdict


def test_waiting_for_data_is_told_with_its_share_and_cause(waiting, make):
    facts = waiting(0.15, make.loader(num_workers=0), make.fetch(batch_s=0.15, worker=-1))
    assert verdict(facts) == (
        "The network spends 60 % of the training time waiting for data: batches are made in the training's own thread, "
        "one after the other."
    )


def test_shares_are_of_the_watched_time_where_there_is_validation(waiting, make):
    facts = waiting(0.1, make.loader(num_workers=0), make.fetch(batch_s=0.1, worker=-1))
    told = verdict(facts, passes=[make.between("validation", 1.0, at=50)])
    assert told.startswith("The network spends 48 % of the watched time waiting for data: ")


def test_a_program_at_its_ceiling_is_told_what_would_help(clean, clean_gpu):
    assert verdict(clean) == (
        "Nothing holds this program back: the network computes 99 % of the time; a faster device, a smaller "
        "network or "
        "lower precision would help."
    )
    assert "a faster GPU, a smaller network" in verdict(clean_gpu)


def test_waiting_that_no_rule_explains_is_not_called_a_ceiling(clean, make):
    facts = replace(clean, steps=make.steps({"wait": 0.03, "forward": 0.07}), loaders=[], fetches=[])
    assert verdict(facts) == (
        "The network spends 30 % of the training time waiting for data, and the recording does not show why."
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"detect_anomaly": True},
            "The network computes for 99 % of the training time and could do so faster: autograd's ",
        ),
        ({"has_cuda": True}, "could do so faster: there is a GPU, and the network runs on the CPU."),
    ],
)
def test_a_network_that_could_be_faster_is_told_how(clean, changes, told):
    assert told in verdict(clean, settings=replace(clean.settings, **changes))


def test_validation_epoch_starts_and_the_loop_have_words_of_their_own(clean, make):
    huge = verdict(clean, passes=[make.between("validation", 10.0, at=50)])
    assert huge == (
        "50 % of the watched time is spent on validation: validation is done too often or on too many scans."
    )
    starts = verdict(clean, loaders=[make.loader(num_workers=2)], passes=[make.between("epoch start", 10.0, at=50)])
    assert starts.startswith("50 % of the watched time passes before the first batch of an epoch: workers are started")
    loop = verdict(clean, steps=make.steps({"forward": 0.06, "other": 0.04}))
    assert loop.startswith("40 % of the training time is neither data nor network: the loop itself takes its time")


def test_a_machine_that_swaps_is_named(clean):
    host = replace(clean.host, swap_in_bytes=2**30, swap_out_bytes=2**30)
    assert verdict(clean, host=host) == "The machine slows this program down: the machine swaps."


def test_few_steps_are_owned_up_to(clean):
    told = verdict(clean, steps=clean.steps[:4])
    assert told.endswith("; only 4 steps could be counted, so repeat the diagnosis with more.")


def test_a_step_that_stood_still_is_told_and_a_late_batch_is_not(clean):
    stopped = [*clean.steps[:-1], replace(clean.steps[-1], seconds=18.0, parts={"forward": 0.1, "backward": 17.9})]
    assert verdict(clean, steps=stopped).endswith(
        "; one step computed for 18 s, as if the program had been stopped meanwhile; this blurs all shares, so "
        "repeat the diagnosis."
    )
    late = [*clean.steps[:-1], replace(clean.steps[-1], seconds=18.0, parts={"wait": 17.9, "forward": 0.1})]
    assert "stopped meanwhile" not in verdict(clean, steps=late)
    slower = [*clean.steps[:-1], replace(clean.steps[-1], seconds=2.0, parts={"backward": 2.0})]
    assert "stopped meanwhile" not in verdict(clean, steps=slower), "a fifth of all would be 2.4 s"


def test_no_step_counted_asks_for_a_longer_run(clean):
    warm = [replace(step, phase="warm-up") for step in clean.steps[:3]]
    assert verdict(clean, steps=warm) == (
        "Only 3 steps ran, too few to count after the first ones, which are slower: let the program train for longer."
    )


def test_a_program_without_torch_is_told_so(clean):
    none = {"steps": [], "experiments": [], "main": replace(clean.main, versions={"numpy": "2.0"})}
    assert verdict(clean, **none) == "This program never imported torch, so there is no training to analyze."
    assert verdict(clean, **none, ended=None, status=2).startswith("This program never imported torch")
    none["main"] = replace(clean.main, versions={"torch": "2.13.0"})
    assert "no torch optimizer made a step" in verdict(clean, **none, ended=None, status=-9)


def test_only_validation_is_told_with_its_cause(clean, make):
    slow = make.between("validation", 4.0, at=-20, num_forwards=4, parts={"wait": 3.0, "forward": 1.0})
    assert verdict(clean, steps=[], passes=[slow]) == (
        "No training step was seen; the network only predicted, for 4.0 s: validation waits for its data."
    )


@pytest.mark.parametrize(
    ("status", "ended", "told"),
    [
        (-9, None, "; the program was ended by SIGKILL after 16 s."),
        (137, None, "; the program was ended by SIGKILL after 16 s."),
        (130, Ending(reason="error", time_s=9.0), "; the program was ended by SIGINT after 16 s."),
        (255, None, "; the program failed after 16 s with status 255."),
        (-250, None, "; the program was ended by signal 250 after 16 s."),
        (3, Ending(reason="program", time_s=16.0), "; the program failed after 16 s with status 3."),
        (None, None, "; the program was killed or is still running after 16 s."),
        (
            0,
            Ending(reason="error", time_s=9.0, note="disk full"),
            "; watching ended with an error after 9.0 s: disk full.",
        ),
    ],
)
def test_an_unhappy_end_is_told_behind_the_verdict(clean, status, ended, told):
    assert verdict(clean, status=status, ended=ended).endswith(told)
    assert verdict(clean, status=status, ended=ended, steps=[]).endswith(told)


def test_a_program_that_was_ended_when_enough_was_seen_did_not_fail(clean):
    assert verdict(clean, status=-15, ended=Ending(reason="limit", time_s=16.0)) == verdict(clean)


def test_the_programs_own_cause_is_named_before_a_busy_machine(waiting, make):
    facts = waiting(0.15, make.loader(num_workers=0), make.fetch(batch_s=0.15, worker=-1))
    told = verdict(facts, host=HostFacts(num_cpus=2, num_machine_cpus=2, cpu_share=0.3, others_share=1.6))
    assert told.startswith("The network spends 60 % of the training time waiting for data: batches are made in")
    assert told.endswith("; the machine also slows it down: other programs use the same cores.")


def test_small_gains_of_computing_are_told_behind_that_nothing_is_wrong(clean, make):
    optimizer = replace(clean.optimizer, implementation="for-loop")
    steps = make.steps({"forward": 0.04, "backward": 0.05, "optimizer": 0.01})
    told = verdict(clean, optimizer=optimizer, steps=steps)
    assert told.startswith("Nothing holds this program back: the network computes 100 % of the time; ")
    assert told.endswith("; a little is left to gain: the optimizer goes through the parameters one by one.")
