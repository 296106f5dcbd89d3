"""Validation and saving: each fault planted in facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity_observe.diagnose.facts import HostFacts


def validation(make, seconds, *, at=50, **fields):
    return make.between("validation", seconds, at=at, **{"num_forwards": 40, "where": "train.py:80", **fields})


def test_a_huge_validation_is_told_how_seldom_it_should_be(clean, make, find):
    facts = replace(clean, passes=[validation(make, 5.0), validation(make, 5.0, at=90)])
    (found,) = find("VX401", facts)
    assert "2 validations took 10 s of 20 s (50 %), 5.0 s each" in found.cause
    # A tenth of the time: every ninth, which leaves 10/9 s beside 10 s.
    assert "% 9 == 0" in found.change
    assert found.saves_s == pytest.approx(10.0 * 8 / 9)
    assert find("VX401", replace(clean, passes=[validation(make, 1.0)])) == ()
    (found,) = find("VX401", replace(clean, passes=[validation(make, 100.0)]))
    assert "% 10 == 0" in found.change
    assert found.saves_s == pytest.approx(90.0)


def test_our_own_runs_are_told_the_key_of_their_plan(clean, make, find):
    loader = make.loader(kind="Feed", num_workers=2)
    facts = replace(clean, loaders=[loader], passes=[validation(make, 5.0), make.between("saving", 1.0, at=60)])
    assert find("VX401", facts)[0].change == "voxelocity train ... --set train.validation_share=0.05"
    assert find("VX411", facts)[0].change == "voxelocity train ... --set train.checkpoint_every_s=300"


def test_gradients_in_validation_are_worth_knowing(clean, make, find):
    (found,) = find("VX402", replace(clean, passes=[validation(make, 1.0, has_gradients=True)]))
    assert (found.saves_s, found.is_cause) == (None, False)
    assert "torch.inference_mode()" in found.change
    assert find("VX402", replace(clean, passes=[validation(make, 1.0)])) == ()


def test_single_windows_are_told_on_a_gpu_alone(clean, clean_gpu, make, find):
    single = validation(make, 2.0, parts={"forward": 1.5, "other": 0.5}, batch_shapes=[((1, 1, 64, 64, 64), 40)])
    (found,) = find("VX403", replace(clean_gpu, passes=[single]))
    assert "40 of 40 calls of the network in validation had one window (1 × 1 × 64 × 64 × 64)" in found.cause
    assert "sw_batch_size=8" in found.change
    assert find("VX403", replace(clean, passes=[single])) == ()
    many = replace(single, batch_shapes=[((8, 1, 64, 64, 64), 40)])
    assert find("VX403", replace(clean_gpu, passes=[many])) == ()


def test_a_validation_that_waits_is_told_of_its_loader(clean, make, find):
    loaders = [*clean.loaders, make.loader(key=2, is_for_training=False, where="train.py:85")]
    waits = validation(make, 4.0, parts={"wait": 1.6, "forward": 2.4})
    (found,) = find("VX404", replace(clean, loaders=loaders, passes=[waits]))
    assert "In 4.0 s of validation, the network waited 1.6 s (40 %)" in found.cause
    assert (found.where, found.saves_s) == ("train.py:85", pytest.approx(1.6))
    quick = replace(waits, parts={"wait": 0.4, "forward": 3.6})
    assert find("VX404", replace(clean, loaders=loaders, passes=[quick])) == ()


@pytest.mark.parametrize(("cores", "saves_s"), [(1, 0.0), (2, 2.0), (4, 3.0)])
def test_workers_of_validation_share_the_cores_with_the_network(cores, saves_s, clean, make, find):
    waits = validation(make, 4.0, parts={"wait": 3.0, "forward": 1.0})
    machine = {"host": HostFacts(num_cpus=cores), "settings": replace(clean.settings, num_threads=1)}
    (found,) = find("VX404", replace(clean, passes=[waits], **machine))
    assert found.saves_s == pytest.approx(saves_s)
    assert f"num_workers={cores}, persistent_workers=True" in found.change


def test_slow_metrics_are_told_where_they_were_found(clean, make, find):
    slow = validation(make, 4.0, parts={"forward": 1.0, "other": 3.0})
    stacks = [make.stack("validation", "other", 60, where="train.py:90", line="hausdorff(p, t)")]
    (found,) = find("VX405", replace(clean, passes=[slow], stacks=stacks))
    assert "3.0 s (75 %) is neither data nor network" in found.cause
    assert (found.where, found.saves_s) == ("train.py:90", pytest.approx(1.5))
    quick = replace(slow, parts={"forward": 3.0, "other": 1.0})
    assert find("VX405", replace(clean, passes=[quick])) == ()


def test_saving_too_often_is_told_how_seldom_it_should_be(clean, make, find):
    facts = replace(clean, passes=[make.between("saving", 0.5, at=10 * index) for index in range(8)])
    (found,) = find("VX411", facts)
    assert "8 saves in 100 steps took 4.0 s of 14 s (29 %), 0.50 s each" in found.cause
    assert "% 29 == 0" in found.change
    assert found.saves_s == pytest.approx(4.0 * 28 / 29)
    assert find("VX411", replace(clean, passes=[make.between("saving", 0.05, at=10)])) == ()


def test_windows_that_overlap_by_three_quarters_are_told_what_half_would_leave(clean, make, find):
    """Five windows an axis become three: 27 of 125."""
    line = "output = sliding_window_inference(image, roi, 4, model, overlap=0.75)"
    shapes = (((4, 1, 32, 32, 32), 31), ((1, 1, 32, 32, 32), 1))
    facts = replace(
        clean,
        passes=[validation(make, 10.0, batch_shapes=shapes, parts={"forward": 9.0, "other": 1.0})],
        loaders=[*clean.loaders, make.loader(key=2, is_for_training=False)],
        fetches=[*clean.fetches, replace(make.fetch(batch_s=0.01), key=2, num_items=1)],
        stacks=[make.stack("validation", "other", 50, where="train.py:80", line=line)],
    )
    (found,) = find("VX406", facts)
    assert "windows that overlap by 75 % along each axis; an overlap of 50 % needs 22 % of the windows" in found.cause
    assert found.saves_s == pytest.approx(10.0 * (1 - 27 / 125))
    assert found.change.startswith("output = sliding_window_inference(image, roi, 4, model, overlap=0.5)")
    assert "125 windows a scan" in found.evidence
    # Where nobody knows how many windows a scan has, as many as in a scan without borders.
    assert find("VX406", replace(facts, fetches=clean.fetches))[0].saves_s == pytest.approx(10.0 * 7 / 8)
    half = [replace(facts.stacks[0], line=line.replace("0.75", "0.5"))]
    assert find("VX406", replace(facts, stacks=half)) == ()


@pytest.mark.parametrize(("shape", "num_found"), [((4, 1, 256, 256), 1), ((4, 9), 1), ((1, 1, 256, 256, 256), 0)])
def test_windows_are_judged_although_another_network_takes_other_inputs(clean, make, find, shape, num_found):
    passed = validation(make, 10.0, batch_shapes=((shape, 31),), overlap=0.75, volume=(64, 64, 64))
    assert len(find("VX406", replace(clean, passes=[passed]))) == num_found
