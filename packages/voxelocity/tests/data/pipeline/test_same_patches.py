"""Which patches are drawn, and their voxels bit for bit, depend on (seed, epoch, case, draw) alone.

Not on the number of threads or processes, the tier that keeps the cases, or where a run was stopped and resumed.
"""

import pytest

from shared.noted_cases import NotedCases, drawn
from voxelocity.data.cache import FOLDER_TIERS

IN_FOLDERS = [f"{tier}{format}" for tier in FOLDER_TIERS for format in ("", " blosc2")]
TIERS = ("none", "memory", "memory that is low", *IN_FOLDERS, "rotating")
NUM_STEPS = 9
RESUMED_AT = 5
"""After 15 draws: in the middle of an epoch of 10, and of one of 6 where the cache rotates."""


@pytest.fixture
def config_of(data_config, monkeypatch):
    """The configuration of a tier; "memory that is low" keeps the cases in the Blosc2 files behind it."""

    def make(tier, num_threads=0, **changes):
        if tier == "memory that is low":
            monkeypatch.setattr("voxelocity.data.cache.choose.memory_floor_bytes", lambda: 2**60)
            config = data_config("memory", num_threads)
            config = config.model_copy(update={"cache": config.cache.model_copy(update={"format": "blosc2"})})
        else:
            config = data_config(tier, num_threads)
        # Two draws of a case in an epoch put the resume point of the rotating cache within an epoch too.
        return config.model_copy(update={"patch": config.patch.model_copy(update={"draws_per_case": 2}), **changes})

    return make


@pytest.fixture(scope="module")
def drawn_before():
    return {}


@pytest.fixture
def reference(blob_refs, config_of, drawn_before):
    """The stream as it is drawn without a cache, case by case in the thread that asks; one of its own where it rotates,
    as other cases are drawn then."""

    def make(tier):
        kind = "rotating" if tier == "rotating" else "none"
        if kind not in drawn_before:
            drawn_before[kind] = draw(blob_refs, config_of(kind), NUM_STEPS)
        return drawn_before[kind]

    return make


def draw(refs, config, num_steps, start_step=0):
    return drawn(NotedCases(refs, config), config, num_steps, start_step=start_step)


@pytest.mark.parametrize("num_threads", [1, 8])
@pytest.mark.parametrize("tier", TIERS)
def test_one_thread_and_eight_draw_the_same_from_every_tier(blob_refs, config_of, reference, tier, num_threads):
    assert draw(blob_refs, config_of(tier, num_threads), NUM_STEPS) == reference(tier)


@pytest.mark.parametrize("num_threads", [0, 8])
@pytest.mark.parametrize("tier", TIERS)
def test_a_run_resumed_within_an_epoch_draws_what_it_would_have_drawn(
    blob_refs, config_of, reference, tier, num_threads
):
    config = config_of(tier, num_threads)
    begun = draw(blob_refs, config, RESUMED_AT)
    resumed = draw(blob_refs, config, NUM_STEPS - RESUMED_AT, start_step=RESUMED_AT)
    assert begun + resumed == reference(tier)


@pytest.mark.parametrize("tier", TIERS)
def test_two_processes_over_one_cache_draw_the_same(blob_refs, config_of, reference, two_workers, tmp_path, tier):
    config = config_of(tier, 2)
    for worker in two_workers:
        worker.ask(
            config, blob_refs, tmp_path / "shared", num_steps=NUM_STEPS, memory_is_low=tier == "memory that is low"
        )
    for answer in [worker.hear() for worker in two_workers]:
        assert answer["digests"] == reference(tier)


def test_another_tier_resumes_what_one_began(blob_refs, config_of, reference):
    begun = draw(blob_refs, config_of("disk blosc2", 1), RESUMED_AT)
    resumed = draw(blob_refs, config_of("lmdb", 8), NUM_STEPS - RESUMED_AT, start_step=RESUMED_AT)
    assert begun + resumed == reference("lmdb")


def test_another_seed_epoch_or_case_draws_something_else(blob_refs, config_of):
    digests = draw(blob_refs, config_of("none"), NUM_STEPS)
    assert len(set(digests)) == NUM_STEPS
    assert draw(blob_refs[::-1], config_of("none"), 1) != digests[:1]
