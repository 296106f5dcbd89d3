import pytest

from voxelocity.core.errors import ConfigError
from voxelocity.data.cache import CacheConfig


@pytest.mark.parametrize("tier", ["disk", "lmdb"])
def test_tier_of_files_without_a_folder_is_refused(tier):
    with pytest.raises(ConfigError, match=rf"folder = '' is not valid.*the {tier} tier needs a folder"):
        CacheConfig.parse({"tier": tier})


def test_a_leading_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert CacheConfig.parse({"tier": "disk", "folder": "~/cache"}).folder == str(tmp_path / "cache")
    assert CacheConfig.parse({"tier": "disk", "folder": "s3://bucket/~"}).folder == "s3://bucket/~"


def test_memory_tier_without_a_budget_is_refused():
    with pytest.raises(ConfigError, match=r"max_bytes = 0 is not valid.*needs a budget above 0"):
        CacheConfig.parse({"tier": "memory"})


def test_negative_budget_is_refused():
    with pytest.raises(ConfigError, match="max_bytes"):
        CacheConfig.parse({"tier": "memory", "max_bytes": -1})


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
