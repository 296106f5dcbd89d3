from pathlib import Path

import pytest

from voxelocity.core.errors import ConfigError
from voxelocity.data.cache import CacheConfig, default_cache_folder


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
