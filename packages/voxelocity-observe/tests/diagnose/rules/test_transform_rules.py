"""What is slow in making a batch: each fault planted in facts, each finding with its figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity_observe.diagnose.facts import FileFacts, TransformFacts
from voxelocity_observe.diagnose.judging import diagnose


def transform(name, self_s, *, order, is_random=False, library="monai", calls=200):
    return TransformFacts(
        name=name, library=library, num_calls=calls, self_s=self_s, self_cpu_s=self_s, is_random=is_random, order=order
    )


@pytest.fixture
def slow(waiting, make):
    """One worker whose batches take 0.3 s, for a network that takes one every 0.1 s."""
    return lambda **fields: waiting(0.2, make.loader(num_workers=1), make.fetch(batch_s=0.3), **fields)


def test_a_slow_collate_function_is_named_and_saves_what_is_no_stacking(waiting, slow, make, find):
    loader = make.loader(num_workers=1, collate="train.collate", collate_where="train.py:9")
    (found,) = find("VX111", waiting(0.2, loader, make.fetch(batch_s=0.3, collate_share=0.8)))
    assert "train.collate takes 0.24 s a step, 80 % of what its batch takes" in found.cause
    assert found.where == "train.py:9"
    # 0.06 s and stacking of 4 MiB are left, and the network takes 0.1 s.
    assert found.saves_s == pytest.approx(20.0, rel=0.05)
    assert find("VX111", slow()) == ()
    loader = make.loader(num_workers=16, collate="torch.utils.data._utils.collate.default_collate")
    assert find("VX111", waiting(0.2, loader, make.fetch(batch_s=0.3, collate_share=0.8))) == ()


def test_gunzip_is_seen_in_the_stacks_of_workers(clean, slow, make, find):
    facts = slow(
        stacks=[make.stack("worker", "gunzip", 70, where="data.py:7"), make.stack("worker", "transform", 30)],
        files=FileFacts(kinds={".nii.gz": 400}, num_opens=400, num_files=200, read_bytes=10**9),
    )
    (found,) = find("VX112", facts)
    assert "70 % of making batches is unpacking gzip" in found.cause
    assert "400 packed files opened" in found.evidence
    # 35 % of 0.3 s go, and the worker is what bounds the step.
    assert found.saves_s == pytest.approx(100 * 0.3 * 0.35, rel=0.01)
    assert find("VX112", replace(clean, stacks=[make.stack("worker", "gunzip", 70)])) == ()


def test_fixed_transforms_before_the_first_random_one_could_be_kept(slow, find):
    chain = [
        transform("LoadImaged", 12.0, order=0),
        transform("Spacingd", 9.0, order=1),
        transform("RandFlipd", 1.0, order=2, is_random=True),
        transform("CastToTyped", 6.0, order=3),
    ]
    facts = slow(transforms=chain, files=FileFacts(kinds={}, num_opens=600, num_files=50, read_bytes=1, num_uses=200))
    (found,) = find("VX113", facts)
    assert "70 % of making items is LoadImaged, Spacingd" in found.cause
    assert "each file was read 4.0 times" in found.evidence
    assert "CastToTyped" not in found.cause
    # 0.09 s of 0.3 s are left, less than the network's step.
    assert found.saves_s == pytest.approx(20.0, rel=0.05)


def test_a_data_set_that_keeps_its_items_is_not_told_to_keep_them(slow, make, find):
    facts = slow(transforms=[transform("LoadImaged", 20.0, order=0), transform("R", 1.0, order=1, is_random=True)])
    assert find("VX113", facts)
    # One that keeps its items does not prepare them again, whatever its class; what fills as it is used looks so once.
    assert find("VX113", replace(facts, loaders=[make.loader(num_workers=1, dataset="CacheDataset")]))
    assert find("VX113", replace(facts, loaders=[make.loader(num_workers=1, dataset="PersistentDataset")])) == ()
    few = [transform("LoadImaged", 20.0, order=0, calls=20), transform("R", 1.0, order=1, is_random=True)]
    assert find("VX113", slow(transforms=few)) == ()


def test_one_random_transform_that_leads_is_named_with_its_library(slow, find):
    chain = [transform("LoadImaged", 5.0, order=0), transform("Rand3DElasticd", 21.0, order=1, is_random=True)]
    (found,) = find("VX114", slow(transforms=chain))
    assert "Rand3DElasticd takes 70 % of making items, 0.10 s a call" in found.cause
    assert (found.risk, "compile(chain)" in found.change) == ("safe", True)
    foreign = [replace(record, library="torchio") for record in chain]
    (found,) = find("VX114", slow(transforms=foreign))
    assert (found.risk, "Rand3DElasticd(..., p=0.2)" in found.change) == ("changes results", True)


def test_batches_that_carry_more_than_the_network_takes_are_told(waiting, make, find):
    heavy = replace(make.fetch(batch_s=0.3), batch_bytes=400 * 1024**2)
    (found,) = find("VX115", waiting(0.2, make.loader(num_workers=1), heavy))
    assert "A batch holds 400 MiB, 100× what" in found.cause
    assert find("VX115", waiting(0.2, make.loader(num_workers=1), make.fetch(batch_s=0.3))) == ()


@pytest.fixture
def rereading(clean, make):
    """A loop without a loader that reads each of 40 files three times."""
    return replace(
        clean,
        steps=make.steps({"forward": 0.04, "backward": 0.06, "other": 0.1}),
        loaders=[],
        fetches=[],
        experiments=[],
        stacks=[
            make.stack("other", "gunzip", 30, where="train.py:25", line="image = load(path)"),
            make.stack("other", "other", 50, where="train.py:27", line="image = image - image.mean()"),
            make.stack("other", "other", 20, where="train.py:28", line="patch = random_crop(image)"),
            make.stack("forward", "other", 40, where="train.py:32"),
        ],
        files=FileFacts(
            kinds={".nii.gz": 360}, num_opens=360, num_files=40, read_bytes=10**8, unpacked_bytes=10**8, num_uses=120
        ),
    )


def test_files_that_are_read_again_and_fit_into_memory_are_to_be_kept(rereading, find):
    (found,) = find("VX116", rereading)
    assert "each of 40 files was read 3.0 times; kept in memory they take 381 MiB at most" in found.cause
    assert found.evidence[:2] == (
        "50 % of the samples, train.py:27: image = image - image.mean()",
        "30 % of the samples, train.py:25: image = load(path)",
    )
    assert found.where == "train.py:25"
    assert not any("random_crop" in line for line in found.evidence)
    # All but the random line, a fifth of the making.
    assert found.saves_s == pytest.approx(8.0, rel=0.01)
    assert found.change.startswith("scans = [read(path) for path in paths]  # before the first epoch")
    assert diagnose(rereading).verdict.startswith(
        "The loop spends 50 % of the training time making its own data, while the network waits: the same "
        "files are read again"
    )


def test_files_that_are_read_once_or_do_not_fit_are_not_to_be_kept(rereading, find):
    files = rereading.files
    assert find("VX116", replace(rereading, files=replace(files, num_uses=40))) == ()
    assert find("VX116", replace(rereading, files=replace(files, unpacked_bytes=10**10))) == ()


def test_a_data_set_of_their_own_is_told_to_read_in_its_beginning(slow, make, find):
    files = FileFacts(kinds={}, num_opens=200, num_files=50, read_bytes=10**8, num_uses=200)
    stacks = [make.stack("worker", "read", 60, where="data.py:7"), make.stack("worker", "resample", 40)]
    (found,) = find("VX116", slow(stacks=stacks, files=files))
    assert "self.scans = [read(path) for path in paths]" in found.change
    assert found.where == "data.py:7"
    chain = [transform("LoadImaged", 20.0, order=0), transform("RandFlipd", 1.0, order=1, is_random=True)]
    assert find("VX116", slow(stacks=stacks, files=files, transforms=chain)) == ()
