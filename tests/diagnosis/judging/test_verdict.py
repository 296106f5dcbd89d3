"""One sentence: the right cause with its figures, and honest where little was seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity.diagnosis.facts import Ending, HostFacts
from voxelocity.diagnosis.judging.judge import diagnose


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
    assert huge == ("50 % of the watched time goes into validation: validation is done too often or on too many scans.")
    starts = verdict(clean, loaders=[make.loader(num_workers=2)], passes=[make.between("epoch start", 10.0, at=50)])
    assert starts.startswith("50 % of the watched time passes before the first batch of an epoch: workers are started")
    loop = verdict(clean, steps=make.steps({"forward": 0.06, "other": 0.04}))
    assert loop.startswith("40 % of the training time is neither data nor network: the loop itself takes its time")


def test_a_machine_that_swaps_is_named(clean):
    host = replace(clean.host, swap_in_bytes=2**30, swap_out_bytes=2**30)
    assert verdict(clean, host=host) == "The machine holds this program back: the machine swaps."


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
    assert verdict(clean, **none) == "This program never imported torch, so there is no training to look at."
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
    assert told.endswith("; the machine holds it back, too: other programs use the same cores.")


def test_small_gains_of_computing_are_told_behind_that_nothing_is_wrong(clean, make):
    optimizer = replace(clean.optimizer, implementation="for-loop")
    steps = make.steps({"forward": 0.04, "backward": 0.05, "optimizer": 0.01})
    told = verdict(clean, optimizer=optimizer, steps=steps)
    assert told.startswith("Nothing holds this program back: the network computes 100 % of the time; ")
    assert told.endswith("; a little is left to gain: the optimizer goes through the parameters one by one.")
