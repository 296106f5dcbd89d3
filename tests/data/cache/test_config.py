import os
from pathlib import Path

import pytest

from voxelocity.core.errors import ConfigError
from voxelocity.data.cache import CacheConfig, config, default_cache_folder


@pytest.mark.parametrize("tier", ["disk", "lmdb"])
def test_tier_of_files_without_a_folder_is_refused(tier):
    with pytest.raises(ConfigError, match=rf"folder = '' is not valid.*the {tier} tier needs a folder"):
        CacheConfig.parse({"tier": tier})


def test_unknown_format_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match=r"format = 'zip' is not valid.*'raw' or 'blosc2'"):
        CacheConfig.parse({"tier": "disk", "folder": "cache", "format": "zip"})


def test_entries_are_raw_unless_told_otherwise():
    assert CacheConfig(tier="disk", folder="cache").format == "raw"


def test_default_folder_is_in_the_cache_folder_of_the_user(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache_folder() == Path("/somewhere/voxelocity")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert default_cache_folder() == Path("/home/somebody/.cache/voxelocity")


def test_memory_tier_without_a_budget_is_refused():
    with pytest.raises(ConfigError, match=r"max_bytes = 0 is not valid.*needs a budget above 0"):
        CacheConfig.parse({"tier": "memory"})


def test_negative_budget_is_refused():
    with pytest.raises(ConfigError, match="max_bytes"):
        CacheConfig.parse({"tier": "memory", "max_bytes": -1})


def test_config_survives_plain_data():
    config = CacheConfig(tier="disk", folder="cache", max_bytes=7)
    assert CacheConfig.parse(config.to_plain()) == config


def test_rotating_tier_without_cases_or_budget_is_refused():
    with pytest.raises(ConfigError, match=r"num_cases = 0 is not valid.*raise num_cases"):
        CacheConfig.parse({"tier": "rotating", "max_bytes": 1})
    with pytest.raises(ConfigError, match=r"max_bytes = 0 is not valid.*the rotating tier needs a budget above 0"):
        CacheConfig.parse({"tier": "rotating", "num_cases": 3})


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1])
def test_replace_rate_that_replaces_nothing_or_too_much_is_refused(rate):
    with pytest.raises(ConfigError, match=r"replace_rate"):
        CacheConfig.parse({"tier": "rotating", "num_cases": 3, "max_bytes": 1, "replace_rate": rate})


@pytest.mark.parametrize(
    ("tier", "holds"), [("none", False), ("memory", True), ("disk", True), ("lmdb", True), ("rotating", False)]
)
def test_only_tiers_that_hold_every_case_are_filled_with_all_first(tier, holds):
    config = CacheConfig(tier=tier, folder="cache", max_bytes=1, num_cases=2)
    assert config.holds_every_case is holds


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device_max_bytes": 1}, r"device_max_bytes = 1 is not valid.*but a device never drops a case; set.* to 0"),
        ({"num_parts": 2}, r"num_parts = 2 is not valid.*one window over all cases; set num_parts to 1"),
    ],
)
def test_a_rotating_cache_goes_neither_on_a_device_nor_in_parts(changes, said):
    rotating = {"tier": "rotating", "num_cases": 3, "max_bytes": 1}
    with pytest.raises(ConfigError, match=said):
        CacheConfig.parse({**rotating, **changes})
    CacheConfig.parse({"tier": "memory", "max_bytes": 1, **changes})


@pytest.mark.parametrize(("key", "value"), [("device_max_bytes", -1), ("num_parts", 0)])
def test_memory_of_a_device_and_parts_have_a_least_value(key, value):
    with pytest.raises(ConfigError, match=key):
        CacheConfig.parse({"tier": "none", key: value})


@pytest.mark.parametrize(
    ("kinds", "environ", "chosen"),
    [
        ({"home": "ext4"}, {"SLURM_TMPDIR": "job"}, "home/.cache/voxelocity"),
        ({"home": "nfs4", "job": "xfs"}, {"SLURM_TMPDIR": "job", "TMPDIR": "other"}, "job/voxelocity-cache-UID"),
        ({"home": "nfs4", "job": "tmpfs", "other": "xfs"}, {"SLURM_TMPDIR": "job", "TMPDIR": "other"},
         "other/voxelocity-cache-UID"),
        ({"home": "nfs4", "job": "lustre"}, {"SLURM_TMPDIR": "job", "TMPDIR": "gone"}, "home/.cache/voxelocity"),
        ({"home": "nfs4", "job": "xfs"}, {"SLURM_TMPDIR": "job", "XDG_CACHE_HOME": "mine"}, "mine/voxelocity"),
    ],
)  # fmt: skip
def test_the_disk_of_a_job_is_taken_where_the_home_is_on_a_network(tmp_path, monkeypatch, kinds, environ, chosen):
    for name in ("home", "job", "other"):
        (tmp_path / name).mkdir()
    for name in ("XDG_CACHE_HOME", "SLURM_TMPDIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name, value in environ.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    monkeypatch.setattr(
        config, "file_system_of", lambda folder: kinds.get(Path(folder).relative_to(tmp_path).parts[0], "ext4")
    )
    assert default_cache_folder() == tmp_path / chosen.replace("UID", str(os.getuid()))
