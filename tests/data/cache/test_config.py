import pytest

from voxelocity.core.errors import ConfigError
from voxelocity.data.cache import CacheConfig


def test_disk_tier_without_a_folder_is_refused():
    with pytest.raises(ConfigError, match=r"folder = '' is not valid.*the disk tier needs a folder"):
        CacheConfig.parse({"tier": "disk"})


def test_memory_tier_without_a_budget_is_refused():
    with pytest.raises(ConfigError, match=r"max_bytes = 0 is not valid.*needs a budget above 0"):
        CacheConfig.parse({"tier": "memory"})


def test_negative_budget_is_refused():
    with pytest.raises(ConfigError, match="max_bytes"):
        CacheConfig.parse({"tier": "memory", "max_bytes": -1})


def test_config_survives_plain_data():
    config = CacheConfig(tier="disk", folder="cache", max_bytes=7)
    assert CacheConfig.parse(config.to_plain()) == config
