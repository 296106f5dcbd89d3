from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

import numpy
import pytest

from voxelocity.diagnosis.doctor import installed
from voxelocity.diagnosis.doctor.installed import find_conflicts, fits, see_packages, wanted_packages
from voxelocity.diagnosis.doctor.seen import Wanted


def test_installed_and_wanted_packages_are_found():
    packages = see_packages()
    assert packages.versions["numpy"] == numpy.__version__
    project = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text())["project"]
    required = [wanted for wanted in packages.wanted if not wanted.extra]
    assert len(required) == len(project["dependencies"])
    assert {wanted.extra for wanted in packages.wanted} - {""} == set(project["optional-dependencies"]) - {"dev"}


def test_leftovers_of_a_broken_removal_and_second_copies_do_no_harm(tmp_path, monkeypatch):
    (tmp_path / "~umpy-2.0.dist-info").mkdir()
    copy = tmp_path / "numba-0.1.dist-info"
    copy.mkdir()
    (copy / "METADATA").write_text("Metadata-Version: 2.1\nName: numba\nVersion: 0.1\nRequires-Dist: numpy<1\n")
    monkeypatch.syspath_prepend(tmp_path)
    packages = see_packages()
    assert packages.versions["numba"] == "0.1"
    assert packages.versions["numpy"] == numpy.__version__
    assert ("numba", "numpy<1") in [(conflict.name, conflict.wants) for conflict in packages.conflicts]


def test_without_a_checkout_the_installed_package_tells_what_it_wants(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ["torch>=2.11", 'lmdb>=1.6; extra == "lmdb"'])
    monkeypatch.setattr(installed, "_CHECKOUT", tmp_path)
    assert see_packages().wanted == (
        Wanted(name="torch", versions=">=2.11"),
        Wanted(name="lmdb", versions=">=1.6", extra="lmdb"),
    )


def test_a_package_that_is_neither_installed_nor_in_a_checkout_wants_nothing(tmp_path, monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    monkeypatch.setattr(installed, "_CHECKOUT", tmp_path)
    assert see_packages().wanted == ()


def test_only_requirements_of_this_machine_and_of_users_count():
    asked = [
        "PyYAML>=6.0",
        "winloop; platform_system == 'Windows'",
        "ruff>=0.15; extra == 'dev'",
        "voxelocity[lmdb]; extra == 'dev'",
        "nvtx>=0.2; (platform_system == 'Linux') and extra == \"nvtx\"",
    ]
    assert list(wanted_packages(asked)) == [
        Wanted(name="pyyaml", versions=">=6.0"),
        Wanted(name="nvtx", versions=">=0.2", extra="nvtx"),
    ]


def test_a_package_that_asks_for_another_neighbor_is_found():
    versions = {"torch": "2.12.0", "triton": "3.5.0", "numba": "0.61.0", "numpy": "2.1.0"}
    asks = {
        "torch": ["triton==3.7.0; platform_system == 'Linux'", "optree>=0.9; extra == 'optree'", "not installed>=1"],
        "numba": ["numpy<2.2,>=1.24"],
    }
    (conflict,) = find_conflicts(versions, asks)
    assert (conflict.name, conflict.version) == ("torch", "2.12.0")
    assert (conflict.wants, conflict.found) == ("triton==3.7.0", "triton 3.5.0")


@pytest.mark.parametrize(
    ("version", "requirement", "expected"),
    [
        ("2.13.0+cu130", "torch>=2.11", True),
        ("2.10.0", "torch>=2.11", False),
        ("2.0.0a2", "torchio>=2.0.0a1", True),
        ("unknown", "torch>=2.11", True),
    ],
)
def test_versions_are_compared_as_pip_does(version, requirement, expected):
    assert fits(version, requirement) is expected
