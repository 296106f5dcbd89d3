import contextlib

import pytest

from voxelocity.bench.emulated import Accelerator, busy_share, most_kept_busy
from voxelocity.observe import FakeClock

H100 = Accelerator()


class Feed:
    """Makes a batch in `each_s` while nobody waits for it, one ahead at the most."""

    def __init__(self, each_s):
        self.clock = FakeClock()
        self._each_s = each_s

    @contextlib.contextmanager
    def __call__(self):
        def batches():
            ready_s = self.clock() + self._each_s
            while True:
                self.clock.advance(max(0.0, ready_s - self.clock()))
                ready_s = self.clock() + self._each_s
                yield 0

        yield batches()

    @property
    def time(self):
        return {"clock": self.clock, "pause": self.clock.advance, "trial_s": 5.0}


def test_an_accelerator_that_never_waits_is_busy_all_the_time():
    feed = Feed(0.3)
    assert busy_share(feed, H100, 1, **feed.time) == pytest.approx(1.0)


def test_the_share_is_what_is_left_after_waiting():
    feed = Feed(0.646)
    assert busy_share(feed, H100, 1, **feed.time) == pytest.approx(0.5, rel=0.01)


# A feed of rate r keeps n accelerators busy for r * step / n of the time.
@pytest.mark.parametrize(("each_s", "count"), [(0.323, 1), (0.36, 0), (0.1, 3), (0.0161, 22)])
def test_the_largest_number_kept_busy_is_found(each_s, count):
    feed = Feed(each_s)
    assert most_kept_busy(feed, H100, batches_per_s=1.0 / each_s, **feed.time) == count


@pytest.mark.parametrize("guessed_rate", [6.0, 20.0])
def test_a_wrong_first_guess_is_mended(guessed_rate):
    feed = Feed(0.1)
    assert most_kept_busy(feed, H100, batches_per_s=guessed_rate, **feed.time) == 3


def test_a_feed_far_too_slow_for_one_is_not_tried():
    feed = Feed(10.0)
    assert most_kept_busy(feed, H100, batches_per_s=0.1, **feed.time) == 0
    assert feed.clock() == 0.0


def test_the_rule_is_that_of_mlperf_storage():
    assert (H100.batch_size, H100.step_s, H100.busy_share) == (7, 0.323, 0.9)
