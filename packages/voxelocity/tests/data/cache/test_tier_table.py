"""What the table of tiers says is what a configuration takes, documentation shows and the machine allows."""

import importlib.util
from typing import get_args

import pytest

from voxelocity.data.cache import TIERS, CacheConfig, TierName, tier_table, tiers_in
from voxelocity_observe.core.environment import CHECKOUT
from voxelocity_observe.core.errors import ConfigError

ROTATING = {"tier": "rotating", "num_cases": 3, "max_bytes": 1}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"tier": "disk"}, r"folder = '' is not valid.*the disk tier needs a folder"),
        ({"tier": "lmdb"}, r"folder = '' is not valid.*the lmdb tier needs a folder"),
        ({"tier": "memory"}, r"max_bytes = 0 is not valid.*needs a budget above 0"),
        ({"tier": "memory", "max_bytes": -1}, "max_bytes"),
        ({"tier": "rotating", "max_bytes": 1}, r"num_cases = 0 is not valid.*raise num_cases"),
        ({"tier": "rotating", "num_cases": 3}, r"max_bytes = 0 is not valid.*the rotating tier needs a budget above 0"),
        ({**ROTATING, "replace_rate": 0.0}, "replace_rate"),
        ({**ROTATING, "replace_rate": 1.1}, "replace_rate"),
        ({"tier": "none", "device_max_bytes": -1}, "device_max_bytes"),
        ({"tier": "none", "num_parts": 0}, "num_parts"),
    ],
)
def test_values_that_no_tier_can_work_with_are_refused_by_name(values, said):
    with pytest.raises(ConfigError, match=said):
        CacheConfig.parse(values)


def test_a_leading_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert CacheConfig.parse({"tier": "disk", "folder": "~/cache"}).folder == str(tmp_path / "cache")
    assert CacheConfig.parse({"tier": "disk", "folder": "s3://bucket/~"}).folder == "s3://bucket/~"


@pytest.mark.parametrize("tier", TIERS)
def test_only_tiers_that_hold_every_case_are_filled_with_all_first(tier):
    config = CacheConfig(tier=tier, folder="cache", max_bytes=1, num_cases=2)
    assert config.holds_every_case is (tier not in ("none", "rotating"))


def test_a_configuration_takes_the_tiers_of_the_table_and_the_page_has_the_row_of_each():
    assert get_args(TierName) == tuple(TIERS)
    page = (CHECKOUT / "docs" / "cache.md").read_text().partition("| `data.cache.tier` |")[2].partition("\n\n")[0]
    for tier, kind in TIERS.items():
        row = f"| `{tier}` | {kind.kept} |"
        assert row in page, f"docs/cache.md lacks {row}"


@pytest.mark.parametrize(
    ("file_system", "is_installed", "works"),
    [("ext4", True, True), ("", True, True), ("nfs4", True, False), ("lustre", True, False), ("ext4", False, False)],
)
def test_lmdb_works_where_it_is_installed_and_the_disk_is_of_this_machine(
    tmp_path, monkeypatch, file_system, is_installed, works
):
    monkeypatch.setattr(tier_table, "file_system_of", lambda folder: file_system)
    if not is_installed:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert ("lmdb" in tiers_in(tmp_path)) is works
    assert "disk" in tiers_in(tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device_max_bytes": 1}, r"device_max_bytes = 1 is not valid.*but a device never drops a case; set.* to 0"),
        ({"num_parts": 2}, r"num_parts = 2 is not valid.*one window over all cases; set num_parts to 1"),
    ],
)
def test_a_rotating_cache_goes_neither_on_a_device_nor_in_parts(changes, said):
    with pytest.raises(ConfigError, match=said):
        CacheConfig.parse({**ROTATING, **changes})
    CacheConfig.parse({"tier": "memory", "max_bytes": 1, **changes})
