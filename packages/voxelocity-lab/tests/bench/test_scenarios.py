"""Each scenario once, tiny: that it runs and what it records; never how fast."""

import importlib.util
import json
import subprocess
import sys
import typing

import pytest

from voxelocity.data.cache import CacheConfig
from voxelocity_lab.bench import NAMES, run_scenario
from voxelocity_lab.bench.cache import disk_tiers
from voxelocity_lab.bench.peers import PEERS
from voxelocity_observe.core.environment import CHECKOUT
from voxelocity_observe.core.errors import OutputError

BENCHMARKS = CHECKOUT / "packages" / "voxelocity-lab" / "benchmarks"
TITLES = {
    "cache": ["first patch", "first patch", "reopening", "kinds", "bytes", "memory"],
    "patches": ["ct", "mr"],
    "transforms": ["ct", "nnunet", "mr"],
    "feed": ["rate"] * 3,
    "windows": ["default", "tutorials", "dense"],
    "build": ["decoders", "build"],
    "training": ["step", "waiting"],
    "monai": ["threads", "one process", "compiled", "persistent", "without affine", "brats", "filling", "memory"],
}


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("bench")


def quick(name, work):
    seen = []
    record = run_scenario(name, quick=True, on_comparison=seen.append, work=work)
    assert list(record.comparisons) == seen
    return record


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_records_all_its_sides(name, work):
    record = quick(name, work)
    kept = json.loads(json.dumps(record.to_plain(), allow_nan=False))
    assert kept["benchmark"] == name
    assert kept["command"] == f"voxelocity bench {name} --quick"
    assert kept["environment"]["num_cpus"] >= 1
    assert "monai" in kept["environment"]["peers"]
    assert kept["settings"]
    assert len(kept["comparisons"]) == len(TITLES[name])
    for comparison in kept["comparisons"]:
        ours, *peers = comparison["sides"]
        assert ours["name"].startswith("Voxelocity")
        assert ours["median"] >= 0
        for side in peers:
            assert ("median" in side) != side["note"].startswith("not installed"), side
            assert "median" not in side or side["low"] <= side["median"] <= side["high"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["build", "cache", "transforms"])
def test_without_any_peer_ours_is_measured_and_the_peers_are_named(name, work, monkeypatch):
    modules = {module for peer in PEERS.values() for module in peer.needs}
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in modules else find_spec(name, *rest)
    )
    for comparison in quick(name, work).comparisons:
        assert comparison.figures[0].values
        for figure in comparison.figures:
            if figure.name.startswith(
                ("MONAI", "TorchIO", "batchgen", "nnU-Net", "SimpleITK", "libdeflate", "zlib-ng")
            ):
                assert figure.values == ()
                assert figure.note.startswith("not installed: ")


def test_a_work_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"bench: cannot make the folder .*file/x \(Not a directory\); name another"):
        run_scenario("patches", quick=True, on_comparison=print, work=tmp_path / "file" / "x")


def test_the_tiers_that_are_measured_are_all_those_on_a_disk(tmp_path):
    measured = [CacheConfig.parse(values) for values in disk_tiers(tmp_path).values()]
    offered = {tier: set(typing.get_args(CacheConfig.model_fields[tier].annotation)) for tier in ("tier", "format")}
    assert {scenario.tier for scenario in measured} == offered["tier"] - {"none", "memory", "rotating"}
    assert {scenario.format for scenario in measured if scenario.tier == "disk"} == offered["format"] - {"auto"}


@pytest.mark.nightly
def test_the_script_in_benchmarks_runs_a_scenario(tmp_path):
    arguments = ["patches", "--quick", "--work", tmp_path / "work", "-o", tmp_path]
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "bench.py", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Voxelocity Feed" in done.stdout
    assert json.loads((tmp_path / "bench_patches.json").read_text())["benchmark"] == "patches"
