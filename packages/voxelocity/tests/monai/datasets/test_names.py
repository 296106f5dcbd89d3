"""Names, arguments and kinds are MONAI's."""

import inspect

import monai.data
import pytest
import torch

import voxelocity.monai

NAMES = [
    "CacheDataset",
    "CacheNTransDataset",
    "DataLoader",
    "Dataset",
    "LMDBDataset",
    "PersistentDataset",
    "SmartCacheDataset",
    "ThreadBuffer",
    "ThreadDataLoader",
    "partition_dataset",
    "partition_dataset_classes",
]


def parameters(function):
    return [(p.name, p.default, p.kind) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("name", NAMES)
def test_names_order_and_defaults_of_the_arguments_are_monais(name):
    assert name in voxelocity.monai.__all__
    assert parameters(getattr(voxelocity.monai, name)) == parameters(getattr(monai.data, name))


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(("Dataset", "Loader"))])
def test_monais_class_and_torchs_are_both_answered_with_yes(name):
    ours = getattr(voxelocity.monai, name)
    assert issubclass(ours, getattr(monai.data, name))
    assert issubclass(ours, (torch.utils.data.Dataset, torch.utils.data.DataLoader))


def test_public_methods_of_monais_classes_are_there():
    for name in NAMES:
        ours, theirs = getattr(voxelocity.monai, name), getattr(monai.data, name)
        public = {method for method in vars(theirs) if not method.startswith("_")} - {"enqueue_values"}
        assert public <= set(dir(ours)), name
