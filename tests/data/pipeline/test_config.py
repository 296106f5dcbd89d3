import pytest

from voxelocity.core.errors import ConfigError
from voxelocity.data.pipeline import FeedConfig


@pytest.mark.parametrize("values", [{"num_threads": -1}, {"num_threads": 1, "num_batches_ahead": 0}])
def test_values_out_of_range_are_refused_by_name(values):
    with pytest.raises(ConfigError, match=list(values)[-1]):
        FeedConfig.parse(values)
