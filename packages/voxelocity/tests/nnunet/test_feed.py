"""Batches for nnU-Net's loop: equal seeds give nnU-Net's own batch, voxel by voxel where no noise is drawn."""

import threading

import numpy as np
import pytest
import torch

from voxelocity.core.region import Region
from voxelocity.nnunet.cases import NnunetCases
from voxelocity.nnunet.feed import NnunetFeed
from voxelocity_observe.core.errors import DatasetError

pytest.importorskip("batchgeneratorsv2.transforms.utils.compose", reason="nnU-Net's transforms")
from .own_chain import FakeDataset, FakeLoader, nnunet_chain

SHAPES = [(20, 31, 24), (14, 22, 18), (33, 26, 29)]


def seed_all(seed):
    np.random.seed(seed)
    torch.manual_seed(seed)


CPU = torch.device("cpu")


def feed_of(loader, *, num_threads=1, num_ahead=1, max_bytes=2**30):
    cases = NnunetCases(loader._data, max_bytes=max_bytes)
    return NnunetFeed(loader, cases, num_threads=num_threads, num_ahead=num_ahead, device=CPU)


LOADERS = {
    "default": ((12, 16, 10), (17, 21, 16), {}),
    "one more on one side": ((12, 16, 10), (17, 20, 15), {}),
    "larger than the crop": ((12, 16, 10), (12, 16, 10), {}),
    "in planes": ((4, 16, 12), (4, 22, 19), {"in_planes": True}),
    "masked, two channels": ((12, 16, 10), (17, 21, 16), {"is_masked": True}),
    "regions": ((12, 16, 10), (17, 21, 16), {"regions": [(1, 2), 2]}),
}


@pytest.mark.parametrize("name", LOADERS)
def test_equal_seeds_give_the_batches_of_nnunet(name):
    patch, crop, settings = LOADERS[name]
    dataset = FakeDataset(SHAPES, num_channels=2 if "two" in name else 1)
    chain = nnunet_chain(patch, noise=0.0, **settings)
    loader = FakeLoader(dataset, chain, crop=crop, patch=patch)
    num_exact = num_other_labels = 0
    with feed_of(loader) as feed:
        for seed in range(40):
            seed_all(seed)
            keys, samples = loader.own_samples()
            seed_all(seed)
            drawn = feed._draw()
            batch = feed._make(drawn)
            assert list(batch["keys"]) == keys
            wanted = torch.stack([sample["image"] for sample in samples])
            targets = [torch.stack(scale) for scale in zip(*(s["segmentation"] for s in samples), strict=True)]
            assert [(t.shape, t.dtype) for t in batch["target"]] == [(t.shape, t.dtype) for t in targets]
            num_other_labels += sum(int((a != b).sum()) for a, b in zip(batch["target"], targets, strict=True))
            # Of two ways to the same filter, the tails differ; and picked voxels, where nnU-Net mirrors after picking.
            params = drawn.params
            is_exact = ~(params.blur_sigma_voxel.any(axis=(1, 2)) | (params.low_resolution != 1.0).any(axis=1))
            torch.testing.assert_close(batch["data"][is_exact], wanted[is_exact], rtol=0, atol=2e-4)
            torch.testing.assert_close(batch["data"], wanted, rtol=0, atol=8.0)
            assert abs(float(batch["data"].std() - wanted.std())) < 0.1
            num_exact += int(is_exact.sum())
    assert num_exact > 30, "most samples are compared voxel by voxel"
    assert num_other_labels <= 40, "ties between classes, on borders alone"


def test_flat_patches_are_those_of_nnunet():
    chain = nnunet_chain((16, 12), noise=0.0, scales=((1, 1), (0.5, 0.5)))
    loader = FakeLoader(FakeDataset(SHAPES), chain, crop=(1, 21, 18), patch=(1, 16, 12), is_flat=True)
    num_exact = 0
    with feed_of(loader) as feed:
        for seed in range(30):
            seed_all(seed)
            _, samples = loader.own_samples()
            seed_all(seed)
            drawn = feed._draw()
            batch = feed._make(drawn)
            assert batch["data"].shape == (2, 1, 16, 12)
            assert [target.shape for target in batch["target"]] == [(2, 1, 16, 12), (2, 1, 8, 6)]
            params = drawn.params
            is_exact = ~(params.blur_sigma_voxel.any(axis=(1, 2)) | (params.low_resolution != 1.0).any(axis=1))
            wanted = torch.stack([sample["image"] for sample in samples])
            torch.testing.assert_close(batch["data"][is_exact], wanted[is_exact], rtol=0, atol=2e-4)
            num_exact += int(is_exact.sum())
    assert num_exact > 20


def test_the_labels_of_a_cascade_move_with_the_image():
    chain = nnunet_chain((12, 16, 10), noise=0.0, scales=((1, 1, 1),))
    loader = FakeLoader(FakeDataset(SHAPES, has_previous=True), chain, crop=(17, 21, 16), patch=(12, 16, 10))
    with feed_of(loader) as feed:
        for seed in range(10):
            seed_all(seed)
            _, samples = loader.own_samples()
            seed_all(seed)
            batch = feed._make(feed._draw())
            wanted = torch.stack([sample["segmentation"][0] for sample in samples])
            assert batch["target"][0].shape == (2, 2, 12, 16, 10)
            assert (batch["target"][0] != wanted).float().mean() < 1e-3


def test_from_the_first_foreign_transform_on_nnunet_does_the_rest():
    chain = nnunet_chain((12, 16, 10), noise=0.0)
    loader = FakeLoader(FakeDataset(SHAPES), chain, crop=(17, 21, 16), patch=(12, 16, 10))
    with feed_of(loader) as feed:
        assert feed.chain.rest == []
    chain.transforms[4].transform.preserve_range = False
    with feed_of(loader) as feed:
        assert feed.chain.rest == chain.transforms[4:]
    chain.transforms[0].p_elastic_deform = 0.2
    with feed_of(loader) as feed:
        assert feed.chain.rest == chain.transforms, "a warp that we cannot make: all of it"
        seed_all(3)
        _, samples = loader.own_samples()
        seed_all(3)
        # Both draw box and chain of a sample in turn, and the chain here as it is applied.
        assert next(feed)["data"].shape == (2, *samples[0]["image"].shape)


def test_noise_has_the_deviation_that_nnunet_draws():
    chain = nnunet_chain((24, 24, 24), noise=1.0)
    for transform in chain.transforms[2:8]:
        transform.apply_probability = 0.0
    loader = FakeLoader(FakeDataset([(30, 30, 30)]), chain, crop=(24, 24, 24), patch=(24, 24, 24), batch_size=8)
    with feed_of(loader) as feed:
        seed_all(0)
        drawn = feed._draw()
        noisy = feed._make(drawn)["data"]
        drawn.params.noise_std[:], asked = 0.0, drawn.params.noise_std.copy()
        noise = (noisy - feed._make(drawn)["data"]).std(dim=(1, 2, 3, 4))
    np.testing.assert_allclose(noise, asked, rtol=0.05)
    assert 0.0 < asked.min() < asked.max() <= 0.1


def test_batches_follow_the_seed_whatever_the_number_of_threads():
    chain = nnunet_chain((12, 16, 10))
    loader = FakeLoader(FakeDataset(SHAPES), chain, crop=(17, 21, 16), patch=(12, 16, 10))

    def batches(num_threads, num_ahead):
        seed_all(5)
        with feed_of(loader, num_threads=num_threads, num_ahead=num_ahead) as feed:
            return [next(feed)["data"] for _ in range(5)]

    for one, other in zip(batches(1, 1), batches(3, 4), strict=True):
        assert torch.equal(one, other)


def test_threads_end_with_the_feed():
    chain = nnunet_chain((12, 16, 10))
    loader = FakeLoader(FakeDataset(SHAPES), chain, crop=(17, 21, 16), patch=(12, 16, 10))
    with feed_of(loader) as feed:
        next(feed)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("voxelocity-nnunet")]


def test_cases_beyond_the_budget_are_read_box_by_box_and_come_out_the_same():
    chain = nnunet_chain((12, 16, 10), noise=0.0)
    dataset = FakeDataset(SHAPES, has_previous=True)
    loader = FakeLoader(dataset, chain, crop=(17, 21, 16), patch=(12, 16, 10))
    found = []
    for max_bytes in (0, 80_000, 2**30):
        cases = NnunetCases(dataset, max_bytes=max_bytes)
        seed_all(1)
        with NnunetFeed(loader, cases, num_threads=2, num_ahead=2, device=CPU) as feed:
            found.append([next(feed) for _ in range(6)])
        assert cases.num_bytes <= max_bytes
        assert cases.num_resident == {0: 0, 80_000: 1, 2**30: 3}[max_bytes]
    for batches in zip(*found, strict=True):
        assert all(torch.equal(batch["data"], batches[0]["data"]) for batch in batches)
        assert all(torch.equal(batch["target"][0], batches[0]["target"][0]) for batch in batches)


def test_of_a_file_only_what_a_sample_needs_is_read():
    dataset, read = FakeDataset([(40, 50, 45)]), []

    class File(np.ndarray):
        def __getitem__(self, key):
            box = super().__getitem__(key)
            read.append(box.shape)
            return box

    chain = nnunet_chain((12, 16, 10), noise=0.0)
    chain.transforms[0].p_rotation = chain.transforms[0].p_scaling = 0.0
    image, *others = dataset._cases["case_0"]
    dataset._cases["case_0"] = image.view(File), *others
    loader = FakeLoader(dataset, chain, crop=(17, 21, 16), patch=(12, 16, 10))
    with feed_of(loader, max_bytes=0) as feed:
        next(feed)
    assert np.max(read, axis=0).tolist() == [1, 12, 16, 10], "and not the box that a turned one needs"


def test_a_label_that_does_not_fit_is_refused_by_name():
    dataset = FakeDataset(SHAPES[:1])
    dataset._cases["case_0"][1][0, 8, 8, 8] = 300
    with pytest.raises(
        DatasetError, match=r"nnunet: the label of case_0 holds values from -1 to 300; .* nnU-Net's own"
    ):
        NnunetCases(dataset, max_bytes=2**30).open("case_0")
    read_later = NnunetCases(dataset, max_bytes=0).open("case_0")
    with pytest.raises(DatasetError, match="the label of case_0 holds values from -1 to 300"):
        read_later.read(Region((0, 0, 0), (20, 20, 20)), 0)


def test_each_case_is_opened_once():
    dataset = FakeDataset(SHAPES)
    cases = NnunetCases(dataset, max_bytes=2**30)
    threads = [threading.Thread(target=lambda: [cases.open(name) for name in dataset.identifiers]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert dataset.num_loads == 3
