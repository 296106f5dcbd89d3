"""Files that changed on their disk: found and named, or the same result; never another result without a word."""

from __future__ import annotations

import os
import random

import pytest

from shared.trial import Trouble, start
from voxelocity.data.cache import DiskTier, LmdbTier
from voxelocity.data.cache.contents import CacheContents


def flipped(numbers, content, num_bits=1):
    """The bytes with this many bits changed."""
    changed = bytearray(content)
    for _ in range(num_bits):
        changed[numbers.randrange(len(changed))] ^= 1 << numbers.randrange(8)
    return bytes(changed)


_DAMAGES = {
    "a flipped bit": flipped,
    "a hundred flipped bits": lambda numbers, content: flipped(numbers, content, 100),
    "a cut": lambda numbers, content: content[: numbers.randrange(len(content))],
    "zeros at the end": lambda numbers, content: content[: len(content) // 2] + bytes(len(content) - len(content) // 2),
    "nothing": lambda numbers, content: b"",
    "something else": lambda numbers, content: numbers.randbytes(500),
}


@pytest.fixture(scope="module")
def unfinished(tiny_msd, often, undisturbed, tmp_path_factory):
    """A run that was killed when it moved its last checkpoint."""
    folder = tmp_path_factory.mktemp("unfinished")
    arguments = ("train", tiny_msd, "-o", folder / "run", "--device", "cpu", *often)
    trouble = Trouble(file=r"step_0*6\.pt", at_move=True)
    assert start(arguments, place=folder / "shm", trouble=trouble).ended().was_killed
    return folder / "run"


@pytest.mark.parametrize("kind", _DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_and_the_weights_are_the_same(
    command, unfinished, damaged, tiny_msd, often, undisturbed, digest, trials, kind
):
    numbers = random.Random(f"checkpoint {kind}")
    for number in range(trials.num(1)):
        with trials.one(f"{kind} {number}"):
            run = damaged(unfinished, "checkpoints/step_000000003.pt", lambda old: _DAMAGES[kind](numbers, old))
            ended = command("train", tiny_msd, "-o", run, "--device", "cpu", *often)
            assert ended.status == 0, ended.err
            assert "step_000000003.pt" in ended.out, "nothing is said"
            assert digest(run) == undisturbed.weights


@pytest.mark.parametrize("name", ["model.safetensors", "model.json"])
def test_a_damaged_model_predicts_the_same_or_is_refused(
    voxelocity, undisturbed, damaged, tiny_msd, files_of, trials, tmp_path, name
):
    numbers = random.Random(name)
    for number in range(trials.num(6)):
        for kind, damage in _DAMAGES.items():
            with trials.one(f"{kind} {number}"):
                run, out = (
                    damaged(undisturbed.run, name, lambda old, damage=damage: damage(numbers, old)),
                    tmp_path / f"{kind} {number}",
                )
                ended = voxelocity(
                    "predict", run, tiny_msd / "imagesTr" / "case_0.nii.gz", "-o", out, "--device", "cpu"
                )
                assert "Traceback" not in ended.err
                if ended.status == 0:
                    assert files_of(out) == {"case_0.nii.gz": undisturbed.predictions["case_0.nii.gz"]}
                else:
                    assert ended.status == 2, ended.err
                    assert "model." in ended.err


@pytest.mark.parametrize("kind", _DAMAGES)
@pytest.mark.parametrize("name", ["run.yaml", "events.jsonl", "scores.json", "slices.npz"])
def test_a_page_of_damaged_facts_is_made_or_refused_in_words(voxelocity, undisturbed, damaged, trials, name, kind):
    numbers = random.Random(f"{name} {kind}")
    for number in range(trials.num(2)):
        with trials.one(f"{name}, {kind} {number}"):
            ended = voxelocity("report", damaged(undisturbed.run, name, lambda old: _DAMAGES[kind](numbers, old)))
            assert "Traceback" not in ended.err
            assert ended.status in (0, 1, 2)
            assert ended.status == 0 or "voxelocity:" in ended.err


@pytest.mark.parametrize("format", ["raw", "blosc2"])
@pytest.mark.parametrize("kind", _DAMAGES)
def test_damaged_entries_on_disk_are_made_again_with_the_same_weights(
    command, tiny_msd, often, tier_sets, undisturbed, digest, trials, tmp_path, kind, format
):
    cache, numbers = tmp_path / "cache", random.Random(f"{kind} {format}")
    train = ("train", tiny_msd, "--device", "cpu", *often, *tier_sets("disk", format, cache))
    with trials.one(f"{format}, {kind}"):
        assert command(*train, "-o", tmp_path / "first").status == 0
        for key in list(DiskTier(cache).keys()):
            (path,) = cache.rglob(f"{key}.safetensors")
            content = path.read_bytes()
            path.unlink()
            path.write_bytes(_DAMAGES[kind](numbers, content))
        ended = command(*train, "-o", tmp_path / "second")
        assert ended.status == 0, ended.err
        assert digest(tmp_path / "second") == undisturbed.weights
        assert {entry.state for entry in CacheContents(cache).entries(full=True)} == {"whole"}


@pytest.mark.parametrize("format", ["raw", "blosc2"])
def test_damaged_values_in_lmdb_are_made_again_with_the_same_weights(
    command, tiny_msd, often, tier_sets, undisturbed, digest, trials, tmp_path, format
):
    cache, numbers = tmp_path / "cache", random.Random(format)
    train = ("train", tiny_msd, "--device", "cpu", *often, *tier_sets("lmdb", format, cache))
    with trials.one(format):
        assert command(*train, "-o", tmp_path / "first").status == 0
        tier = LmdbTier(cache)
        for key in list(tier.keys()):
            with tier._store.reading(key) as kept:
                content = bytes(kept)
            tier._store.write(key, [memoryview(flipped(numbers, content, 3))])
        tier._store.close()
        ended = command(*train, "-o", tmp_path / "second")
        assert ended.status == 0, ended.err
        assert digest(tmp_path / "second") == undisturbed.weights


@pytest.mark.parametrize("num_bytes", [0, 1, 5000, 9000, 100_000])
def test_a_cut_lmdb_file_is_made_again_with_the_same_weights(
    command, tiny_msd, often, tier_sets, undisturbed, digest, trials, tmp_path, num_bytes
):
    cache = tmp_path / "cache"
    train = ("train", tiny_msd, "--device", "cpu", *often, *tier_sets("lmdb", folder=cache))
    with trials.one(f"{num_bytes} bytes"):
        assert command(*train, "-o", tmp_path / "first").status == 0
        (path,) = cache.glob("*.lmdb")
        os.truncate(path, num_bytes)
        ended = command(*train, "-o", tmp_path / "second")
        assert ended.status == 0, ended.err
        assert digest(tmp_path / "second") == undisturbed.weights
