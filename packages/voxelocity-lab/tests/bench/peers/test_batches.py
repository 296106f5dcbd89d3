"""What is measured against each other must do the same kind of work."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from voxelocity_lab.bench.patches import copies_per_s
from voxelocity_lab.bench.peers import torch_loop
from voxelocity_lab.bench.phantom import PhantomSet, make_phantoms
from voxelocity_lab.bench.streams import AS_MONAI, Work

PATCH = (24, 20, 16)
CT = PhantomSet(kind="ct", shape=(48, 40, 32), num_cases=2)
MR = PhantomSet(kind="mr", shape=(40, 40, 40), num_cases=1)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("bench")


def work_on(phantoms, folder, *, batch_size=2, workers=(0,)):
    return Work.of(phantoms, folder, patch=PATCH, batch_size=batch_size, workers=workers)


def loaded(phantoms, folder):
    return work_on(phantoms, folder).volumes


@pytest.mark.parametrize("phantoms", [CT, MR], ids=["ct", "mr"])
def test_our_prepared_intensities_are_those_that_monai_caches(phantoms, work):
    from voxelocity_lab.bench.peers import monai

    item = monai.make_cached(make_phantoms(phantoms, work), phantoms.kind, [])[0]
    volume = loaded(phantoms, work)[0]
    ranges = np.ptp(volume.intensities(), axis=(1, 2, 3)).max()
    assert np.abs(item["image"].numpy() - volume.intensities()).max() < 1e-4 * ranges
    assert np.array_equal(item["label"].numpy()[0], volume.label)


@pytest.mark.parametrize("chain", ["crop", "affine"])
def test_monai_gives_batches_of_our_shape(chain, work):
    from voxelocity_lab.bench.peers import monai

    job = work_on(CT, work)
    with job.feed(AS_MONAI)() as feed:
        mine = next(feed)
    streams = monai.streams(job, chain)
    assert list(streams) == ["DataLoader(num_workers=0)", "ThreadDataLoader(num_workers=0)"]
    for stream in streams.values():
        with stream() as batches:
            theirs = next(batches)
        assert theirs["image"].shape == mine.image.shape
        assert theirs["image"].dtype == mine.image.dtype
        assert theirs["label"].shape == (2, 1, *PATCH)


def test_all_sides_make_batches_on_the_device_of_the_work(work):
    from voxelocity_lab.bench.peers import monai

    # The one device besides the CPU that every machine has: tensors without values.
    job = replace(work_on(CT, work), device="meta")
    assert job.feed_side(AS_MONAI, 1).name.endswith("threads, meta)")
    for name, stream in {**monai.streams(job, "affine"), **torch_loop.streams(job, "affine")}.items():
        with stream() as batches:
            batch = next(batches)
        image = batch["image"] if isinstance(batch, dict) else batch[0]
        assert (image.device.type, tuple(image.shape)) == ("meta", (2, 1, *PATCH)), name


def test_every_patch_of_the_chain_like_monais_is_changed():
    from voxelocity.core.batch import Draw
    from voxelocity.data.augment import sample

    draws = [Draw(case_id="a", case=0, epoch=epoch) for epoch in range(20)]
    params = sample(draws, seed=0, num_channels=1, patch_shape=PATCH, config=AS_MONAI)
    assert params.is_warped.all()
    assert (params.noise_std > 0).all()
    assert (params.scale != 1).all()
    assert (params.shift != 0).all()
    assert (params.gamma == 1).all()
    assert 0 < params.flips.mean() < 1


@pytest.mark.parametrize("workers", [0, 1])
def test_plain_torch_gives_batches_of_our_shape(work, workers):
    (open_stream,) = torch_loop.streams(work_on(CT, work, batch_size=3, workers=(workers,)), "affine").values()
    with open_stream() as batches:
        image, label = next(batches)
    assert (image.shape, image.dtype) == ((3, 1, *PATCH), torch.float32)
    assert (label.shape, label.dtype) == ((3, 1, *PATCH), torch.uint8)
    assert int(label.max()) < CT.num_classes


def test_torchio_gives_patches_of_our_shape_and_changes_them(work):
    pytest.importorskip("torchio")
    from voxelocity_lab.bench.peers.torchio import AugmentedPatches

    patches = AugmentedPatches(loaded(CT, work), PATCH)
    assert len(patches) == 2
    for _ in range(3):
        made = patches[1]
        assert (made["image"].shape, made["image"].dtype) == ((1, *PATCH), torch.float32)
        assert made["label"].shape == (1, *PATCH)
        assert set(made["label"].unique().tolist()) <= set(range(CT.num_classes))
    # Cut as it is, a phantom holds few values; noise makes each voxel's its own.
    assert len(made["image"].unique()) > 2 * len(patches.cut(1)[0].unique())


def test_torchio_2_changes_each_patch_of_a_batch_in_its_own_way(work):
    torchio = pytest.importorskip("torchio")
    from voxelocity_lab.bench.peers import torchio as torchio_side

    if not torchio_side.TAKES_BATCHES:
        pytest.skip(f"TorchIO {torchio.__version__} takes one patch at a time; batches came with 2.0.0a1")

    class SamePatch(torchio_side.AugmentedPatches):
        def cut(self, index):
            return self.images[0][:, :24, :20, :16], self.labels[0][:, :24, :20, :16]

    patches = SamePatch(loaded(CT, work), PATCH)
    before = patches.cut(0)[0].clone()
    with torchio_side.open_batches(patches, 3) as batches:
        made = next(batches)
    assert (made["image"].shape, made["image"].dtype) == ((3, 1, *PATCH), torch.float32)
    assert (made["label"].shape, made["label"].dtype) == ((3, 1, *PATCH), torch.uint8)
    assert not torch.equal(made["image"][0], made["image"][1])
    assert torch.equal(patches.cut(0)[0], before), "the case in memory was changed"


def test_nnunet_gives_patches_of_our_shape_from_the_cube_it_reads(work):
    pytest.importorskip("batchgeneratorsv2")
    from voxelocity_lab.bench.peers import nnunet

    patch = (16, 16, 16)
    patches = nnunet.LoadedPatches(loaded(CT, work), patch, nnunet.default_augmentation(patch))
    image, label = patches.read(0)
    assert image.shape == label.shape == (1, *(nnunet.loaded_side(16),) * 3)
    made = patches[0]
    assert made["image"].shape == made["segmentation"].shape == (1, *patch)
    # What nnU-Net itself reports for a patch of 128.
    assert nnunet.loaded_side(128) == 205


def test_cases_smaller_than_the_cube_are_padded(work):
    pytest.importorskip("batchgeneratorsv2")
    from voxelocity_lab.bench.peers import nnunet

    image, label = nnunet.LoadedPatches(loaded(MR, work), (32, 32, 32), None).read(0)
    assert image.shape == (4, 51, 51, 51)
    assert not image[:, 0].any()
    assert not label[:, 0].any()


@pytest.mark.parametrize("augmented", [False, True])
def test_nnunets_own_feed_gives_batches_of_our_shape_and_ends_its_workers(augmented, work, tmp_path):
    pytest.importorskip("nnunetv2", exc_type=ImportError)
    import multiprocessing

    import blosc2

    from voxelocity_lab.bench.peers import nnunet

    patch, before = (16, 16, 16), blosc2.nthreads
    volumes = loaded(CT, work)
    nnunet.write_cases(volumes, tmp_path, patch)
    stored = blosc2.open(str(tmp_path / f"{volumes[1].case_id}.b2nd"), mode="r")
    assert np.array_equal(stored[...], volumes[1].intensities())
    options = {"batch_size": 3, "num_classes": CT.num_classes, "augmented": augmented, "num_workers": 1}
    with nnunet.open_batches(tmp_path, patch, **options) as batches:
        made = next(batches)
    assert (made["data"].shape, made["data"].dtype) == ((3, 1, *patch), torch.float32)
    assert (made["target"].shape, made["target"].dtype) == ((3, 1, *patch), torch.int16)
    # nnU-Net fills what lies beyond a volume with -1.
    assert set(made["target"].unique().tolist()) <= set(range(-1, CT.num_classes))
    # The last third of a batch is centered on foreground.
    assert made["target"][2].max() > 0
    assert not multiprocessing.active_children()
    assert blosc2.nthreads == before


def test_the_plain_copy_has_a_rate(work):
    assert copies_per_s(loaded(CT, work), PATCH, 3, num_threads=2) > 0
