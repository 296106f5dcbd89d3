"""What is prepared again though it could be kept: each fault planted in facts, each finding with its figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity_observe.diagnose.facts import ExperimentFacts, FileFacts, TransformFacts
from voxelocity_observe.diagnose.judging import diagnose


def transform(name, self_s, *, is_random=False, calls=200, loader=1, order=0, **fields):
    return TransformFacts(
        name=name, library="monai", num_calls=calls, self_s=self_s, self_cpu_s=self_s, is_random=is_random,
        order=order, loader=loader, **fields,
    )  # fmt: skip


def files(uses):
    return FileFacts(kinds={}, num_opens=uses, num_files=50, read_bytes=10**8, num_uses=uses)


@pytest.fixture
def slow(waiting, make):
    """One worker whose batches take 0.3 s, for a network that takes one every 0.1 s."""
    parts = {"dataset": "Own", "dataset_variable": "ds", "dataset_built": "train.py:20"}

    def build(call="", **fields):
        loader = make.loader(num_workers=1, **parts, dataset_call=call)
        return waiting(0.2, loader, make.fetch(batch_s=0.3), **fields)

    return build


@pytest.mark.parametrize(
    ("call", "change"),
    [
        ("CacheDataset(files, chain, cache_rate=0.0)", "ds = CacheDataset(files, chain, cache_rate=1.0)"),
        ("CacheDataset(files, chain, cache_num=6)", "ds = CacheDataset(files, chain)"),
        ("Dataset(files, chain)", "ds = CacheDataset(files, chain)"),
    ],
)
def test_a_data_set_that_keeps_a_part_is_known_by_what_it_prepares(slow, find, call, change):
    chain = [transform("Spacingd", 21.0, calls=140), transform("RandFlipd", 1.0, is_random=True, order=1)]
    (found,) = find("VX113", slow(call, transforms=chain, files=files(200)))
    assert "computed again for 70 % of the items; the others are kept" in found.cause
    assert change in found.change
    assert found.where == "train.py:20"
    # What fills as it is used has read each file once, and may have all from now on.
    assert find("VX113", slow(call, transforms=chain, files=files(50))) == ()


def test_the_first_batches_of_epochs_are_made_sooner_too(slow, find, make):
    """Half of the making is fixed, and epochs wait for 6 s in all for batches of workers that are there already."""
    chain = [transform("Spacingd", 15.0), transform("RandFlipd", 1.0, is_random=True, order=1)]
    facts = slow(transforms=chain, files=files(200))
    starts = [make.between("epoch start", 2.0, at=step) for step in (20, 40, 60)]
    persistent = replace(facts, loaders=[replace(loader, persistent_workers=True) for loader in facts.loaders])
    without, with_starts, started = (
        find("VX113", made)[0].saves_s
        for made in (persistent, replace(persistent, passes=starts), replace(facts, passes=starts))
    )
    assert with_starts - without == pytest.approx(0.5 * 6.0, rel=0.1)
    assert started == pytest.approx(without), "the whole start may be that of the workers"


def test_what_validation_prepares_is_not_the_trainings(slow, find):
    chain = [
        transform("RandFlipd", 1.0, is_random=True, order=1),
        transform("Spacingd", 30.0, calls=120, loader=2),
    ]
    assert find("VX113", slow(transforms=chain, files=files(200))) == ()
    assert find("VX117", slow(transforms=chain, files=files(200))) == ()


def test_fixed_transforms_behind_a_random_one_are_to_go_before_it(slow, find):
    chain = [
        transform("RandFlipd", 1.0, is_random=True, where="train.py:12", line="RandFlipd(keys, 0.5),"),
        transform("Spacingd", 18.0, order=1, where="train.py:13", line="Spacingd(keys, (1, 1, 1)),"),
        transform("SpatialPadd", 9.0, order=2),
    ]
    facts = slow("CacheDataset(files, chain)", transforms=chain)
    (found,) = find("VX117", facts)
    assert "60 % of making items is Spacingd, after RandFlipd" in found.cause
    assert (found.where, found.risk) == ("train.py:12", "changes results")
    assert found.change.splitlines()[1:] == ["Spacingd(keys, (1, 1, 1)),", "RandFlipd(keys, 0.5),"]
    # 0.12 s of 0.3 s are left, and the network takes 0.1 s.
    assert found.saves_s == pytest.approx(18.0, rel=0.05)
    # Where nothing is kept yet, moving alone brings nothing.
    (found,) = find("VX117", replace(facts, transforms=[transform("LoadImaged", 2.0, order=-1), *chain]))
    assert "ds = CacheDataset(files, chain)" in found.change
    assert find("VX117", slow(transforms=[replace(record, order=-record.order) for record in chain])) == ()


@pytest.fixture
def replacing(slow, make):
    """Steps that wait half of their time at a line which waits for a thread, which prepares items meanwhile."""
    chain = [
        transform("RandFlipd", 1.0, is_random=True, order=1),
        transform("Spacingd", 9.0, loader=-1),
    ]
    call = "SmartCacheDataset(files, chain, replace_rate=0.8)"
    facts = slow(call, transforms=chain, stacks=[
        make.stack("other", "other", 90, where="train.py:30", line="ds.update_cache()",
                   function="monai.data.dataset.SmartCacheDataset.update_cache"),
        make.stack("other", "other", 10, where="train.py:31"),
    ])  # fmt: skip
    return replace(facts, steps=make.steps({"forward": 0.04, "backward": 0.06, "other": 0.1}), experiments=[])


def test_a_slow_replacement_is_named_at_the_data_set_with_what_its_thread_does(replacing, find):
    (found,) = find("VX118", replacing)
    assert "The loop waits 9.0 s of 20 s (45 %) at ds.update_cache()" in found.cause
    assert found.saves_s == pytest.approx(9.0)
    assert found.where == "train.py:20"
    # More threads where cores are free, otherwise as much as an epoch has time for.
    assert found.change.startswith("ds = SmartCacheDataset(files, chain, replace_rate=0.8, num_replace_workers=2)")
    (found,) = find("VX118", replace(replacing, host=replace(replacing.host, num_cpus=2)))
    assert found.change.startswith("ds = SmartCacheDataset(files, chain, replace_rate=0.4)")
    assert diagnose(replacing).findings[0].code == "VX118"


def test_a_loop_that_waits_without_such_a_thread_replaces_nothing(replacing, find):
    assert find("VX118", replace(replacing, transforms=replacing.transforms[:1])) == ()
    assert find("VX118", replace(replacing, stacks=replacing.stacks[1:])) == ()


def test_a_function_that_reads_and_draws_nothing_is_kept_with_all_that_it_does(slow, make, find):
    stacks = [
        make.stack("worker", "read", 20, where="data.py:7", within="Scans.load", draws=False),
        make.stack("worker", "resample", 60, where="data.py:9", line="zoom(scan)", within="Scans.load", draws=False),
        make.stack("worker", "resample", 20, where="data.py:20", line="rotate(scan)", within="Scans.turn", draws=False),
    ]
    (found,) = find("VX116", slow(stacks=stacks, files=files(200)))
    assert "80 % of making batches is reading files" in found.cause
    drawing = [replace(stack, draws=True) for stack in stacks]
    (found,) = find("VX116", slow(stacks=drawing, files=files(200)))
    assert "20 % of making batches is reading files" in found.cause


def test_what_workers_lose_with_each_epoch_is_known_by_an_item_made_twice(waiting, make, find):
    tried = [
        ExperimentFacts(name="item, first use", unit="item", seconds=[0.14, 0.14]),
        ExperimentFacts(name="item, used again", unit="item", seconds=[0.001, 0.001]),
    ]
    loader = make.loader(num_workers=2, call="DataLoader(ds, num_workers=2)", variable="loader", built="train.py:30")
    facts = waiting(0.05, loader, make.fetch(batch_s=0.3), files=files(200), experiments=tried)
    (found,) = find("VX120", facts)
    assert "An item takes 0.14 s when it is first used and 1 ms when it is used again" in found.cause
    assert found.change.endswith("\nloader = DataLoader(ds, num_workers=2, persistent_workers=True)")
    assert found.saves_s == pytest.approx(5.0)
    assert diagnose(facts).findings[0].code == "VX120"
    persistent = replace(loader, persistent_workers=True)
    assert find("VX120", replace(facts, loaders=[persistent])) == ()
    same = [tried[0], replace(tried[1], seconds=[0.1])]
    assert find("VX120", replace(facts, experiments=same)) == ()
    assert find("VX120", replace(facts, files=files(50))) == (), "each item was used once"
