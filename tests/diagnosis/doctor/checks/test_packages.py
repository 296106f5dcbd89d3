from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity.diagnosis.doctor.checks.packages import GIVES, judge_packages
from voxelocity.diagnosis.doctor.installed import see_packages
from voxelocity.diagnosis.doctor.pairs import PAIRS
from voxelocity.diagnosis.doctor.seen import Conflict, Torch, Wanted


@pytest.fixture
def judged(packages, torch):
    """Lines that are not fine where these packages are (None: not) installed."""

    def judge(*, seen_torch=torch, conflicts=(), **versions):
        named = {name.replace("_", "-"): version for name, version in versions.items()}
        kept = {name: version for name, version in {**packages.versions, **named}.items() if version}
        checks = judge_packages(replace(packages, versions=kept, conflicts=conflicts), seen_torch)
        return [check for check in checks if check.level != "ok"]

    return judge


def test_a_whole_installation_is_described(packages, torch):
    found = [check.found for check in judge_packages(packages, torch)]
    assert found[0] == "all 2 installed: Python 3.11.7, torch 2.13.0+cu130, numpy 2.4.6"
    assert found[1].startswith("lmdb 3.0.0: a cache of all cases in one file")


def test_a_required_package_that_is_missing_stops_training(judged):
    (check,) = judged(numpy=None)
    assert (check.level, check.stops_training) == ("problem", True)
    assert (check.found, check.cure) == ("not installed: numpy", "pip install 'numpy>=2.0'")


def test_a_torch_that_is_missing_or_came_without_pip_is_judged_elsewhere(judged, torch):
    assert judged(torch=None) == []
    assert judged(torch=None, seen_torch=Torch(error="No module named 'torch'")) == []


def test_a_required_package_that_is_too_old_is_a_warning(judged):
    (check,) = judged(numpy="1.26.4")
    assert (check.level, check.stops_training) == ("warning", False)
    assert check.found == "numpy 1.26.4 (required: >=2.0)"


def test_a_package_that_asks_for_another_neighbor_is_told(judged):
    torch_asks = Conflict(name="torch", version="2.13.0", wants="triton==3.7.1", found="triton 3.5.0")
    lmdb_asks = Conflict(name="lmdb", version="3.0.0", wants="patch-ng<2", found="patch-ng 2.1")
    checks = judged(conflicts=(torch_asks, lmdb_asks))
    assert [check.level for check in checks] == ["warning", "note"]
    assert checks[0].found == "torch 2.13.0 requires triton==3.7.1, and triton 3.5.0 is installed"
    assert checks[0].cure.startswith("pip install 'triton==3.7.1'")


PLANTED = [
    {"cudnn": "9.10.2"},
    {"nvidia-cudnn-cu13": "9.20.0.48"},
    {"numba": "0.61.0"},
    {"nibabel": "5.1.0"},
    {"pandas": "2.2.1"},
    {"tensorboard": "2.20.0", "setuptools": "82.0.1"},
]
MENDED = [
    {"cudnn": "9.15.0"},
    {"nvidia-cudnn-cu13": "9.23.0.1"},
    {"numba": "0.61.2"},
    {"nibabel": "5.2.0"},
    {"pandas": "2.2.2"},
    {"tensorboard": "2.21.0", "setuptools": "84.2.1"},
]


@pytest.mark.parametrize(("pair", "bad", "good"), list(zip(PAIRS, PLANTED, MENDED, strict=True)))
def test_versions_that_do_not_get_along_are_found_and_their_neighbors_are_not(judged, torch, pair, bad, good):
    def checks(versions):
        around = replace(torch, cudnn=versions.get("cudnn", torch.cudnn))
        return judged(seen_torch=around, **{name: text for name, text in versions.items() if name != "cudnn"})

    (check,) = checks(bad)
    assert (check.level, check.costs, check.source) == (pair.level, pair.costs, pair.source)
    assert all(version in check.found for version in bad.values())
    assert checks(good) == []


def test_cudnn_is_nothing_to_a_build_for_cpus(judged, torch):
    assert judged(seen_torch=replace(torch, cuda="", cudnn="9.10.2")) == []


def test_a_missing_extra_says_what_it_gives_and_how_to_get_it(packages, torch):
    without = replace(packages, versions={**packages.versions, "lmdb": ""})
    line = next(check for check in judge_packages(without, torch) if check.name == "extra lmdb")
    assert line.level == "ok"
    assert line.found.startswith("not installed: lmdb; for a cache of all cases in one file")
    assert line.cure == "if you want it: pip install 'voxelocity[lmdb]'"


def test_an_extra_of_which_part_is_there_names_both_parts(packages, torch):
    wanted = tuple(Wanted(name=name, extra="bench") for name in ("lmdb", "pandas"))
    checks = judge_packages(replace(packages, wanted=wanted), torch)
    (found,) = [check.found for check in checks if check.name == "extra bench"]
    assert found == "lmdb 3.0.0; not installed: pandas; for `voxelocity bench` with its peers"


def test_the_larger_package_stands_for_its_client(packages, torch):
    wanted = (Wanted(name="mlflow-skinny", extra="mlflow"),)
    versions = {**packages.versions, "mlflow": "3.17.2"}
    checks = judge_packages(replace(packages, wanted=wanted, versions=versions), torch)
    assert "mlflow-skinny 3.17.2: curves of a run in MLflow" in [check.found for check in checks]


def test_every_extra_of_this_package_is_explained():
    assert {wanted.extra for wanted in see_packages().wanted} - {""} <= set(GIVES)


def test_a_cuda_build_without_triton_is_told(judged, torch):
    (check,) = judged(triton=None)
    assert (check.name, check.level) == ("triton", "warning")
    assert judged(triton=None, seen_torch=replace(torch, cuda="", cudnn="")) == []


def test_a_version_that_nobody_can_read_is_blamed_for_nothing_known(judged):
    assert judged(pandas="local build") == []
