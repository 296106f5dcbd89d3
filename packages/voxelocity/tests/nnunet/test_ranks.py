"""Several GPUs: nnU-Net starts the ranks, and each feed takes its share of cores and memory; needs no nnU-Net."""

from types import SimpleNamespace

import pytest
import torch

from voxelocity.nnunet import trainer as module
from voxelocity.nnunet.trainer import VoxelocityFeed


def loader_of(transforms):
    dataset = SimpleNamespace(identifiers=[], load_case=None)
    return SimpleNamespace(
        transforms=transforms, get_indices=None, get_do_oversample=None, get_bbox=None, patch_size_was_2d=False,
        patch_size=(8, 8, 8), final_patch_size=(8, 8, 8), _data=dataset,
    )  # fmt: skip


class OwnTrainer:
    device, is_cascaded = torch.device("cpu"), False

    def __init__(self, *, is_ddp=False, transforms=None):
        self.is_ddp, self.transforms, self.said = is_ddp, transforms, []

    def print_to_log_file(self, text):
        self.said.append(text)

    def get_dataloaders(self):
        loader = loader_of(self.transforms)
        return SimpleNamespace(data_loader=loader), SimpleNamespace(data_loader=loader)


class Trainer(VoxelocityFeed, OwnTrainer):
    pass


@pytest.mark.parametrize(("num_ranks", "num_threads", "num_bytes"), [(1, 8, 3200), (4, 2, 800)])
def test_ranks_of_a_machine_share_cores_and_memory(num_ranks, num_threads, num_bytes, monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: num_ranks)
    monkeypatch.setattr(module, "available_memory_bytes", lambda: 8000)
    monkeypatch.setattr(module, "cpu_budget", lambda *, num_local_ranks: 8 // num_local_ranks)
    training, validation = Trainer(is_ddp=num_ranks > 1).get_dataloaders()
    with training, validation:
        assert training._pool._max_workers == validation._pool._max_workers == num_threads
        assert (training._cases._max_bytes, validation._cases._max_bytes) == (num_bytes, num_bytes // 4)


@pytest.mark.parametrize(
    ("transforms", "said"),
    [(None, "of voxels in memory"), (SimpleNamespace(), "in memory; nnU-Net's own code runs SimpleNamespace")],
)
def test_the_log_says_what_is_left_to_nnunet(transforms, said):
    trainer = Trainer(transforms=transforms)
    for feed in trainer.get_dataloaders():
        feed.close()
    assert [text.endswith(said) for text in trainer.said] == [True, True]
