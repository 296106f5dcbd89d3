"""Transforms are timed by name, each without what it calls, and the libraries are left as they were. Whether one draws
numbers is told from its class and from what it holds."""

import inspect
import random
import sys
import threading
import types

import monai.transforms as mt
import numpy as np
import pytest
import torch
from monai.transforms import (
    Compose,
    Lambdad,
    NormalizeIntensityd,
    OneOf,
    RandFlipd,
    RandomizableTransform,
    ScaleIntensityd,
)

from shared.watched_moment import WatchedMoment
from voxelocity_observe.diagnose.recorder import chains
from voxelocity_observe.diagnose.recorder.hooks import Imports
from voxelocity_observe.diagnose.recorder.transforms import TransformTimer, may_differ


@pytest.fixture
def moment():
    return WatchedMoment("wait")


@pytest.fixture
def transforms(moment):
    transforms = TransformTimer(moment)
    transforms.start()
    yield transforms
    transforms.stop()


def timed(transforms, moment):
    moment.events.clear()
    transforms.report(moment)
    return {event["name"]: event for event in moment.written("transform")}


def item():
    return {"image": np.ones((1, 4, 4, 4), np.float32)}


def test_transforms_of_a_monai_chain_are_counted_in_their_order(transforms, moment):
    chain = Compose([ScaleIntensityd("image"), RandFlipd("image", prob=0.5), Lambdad("image", lambda x: x)])
    for _ in range(3):
        chain(item())
    found = timed(transforms, moment)
    assert [(name, event["num_calls"], event["is_random"], event["order"]) for name, event in found.items()] == [
        ("ScaleIntensityd", 3, False, 0),
        ("RandFlipd", 3, True, 1),
        ("Lambdad", 3, False, 2),
    ]
    assert {event["library"] for event in found.values()} == {"monai"}
    assert all(event["self_s"] > 0 for event in found.values())


def test_seconds_of_a_transform_within_another_count_once(transforms, moment):
    inner = Lambdad("image", lambda x: [x, sum(range(300_000))][0])
    outer = Compose([OneOf([inner])])
    outer(item())
    found = timed(transforms, moment)
    assert found["OneOf"]["num_calls"] == found["Lambdad"]["num_calls"] == 1
    assert found["OneOf"]["is_random"]
    # All of the work is the inner one's.
    assert found["OneOf"]["self_cpu_s"] < found["Lambdad"]["self_cpu_s"]
    assert found["OneOf"]["self_s"] < found["Lambdad"]["self_s"]


def test_a_chain_within_a_chain_is_random_only_if_what_it_holds_is(transforms, moment):
    Compose([Compose([ScaleIntensityd("image")])])(item())
    assert not timed(transforms, moment)["Compose"]["is_random"]
    Compose([Compose([RandFlipd("image")])])(item())
    assert timed(transforms, moment)["Compose"]["is_random"]


def test_what_a_random_transform_applies_within_itself_is_part_of_it(transforms, moment):
    """As TorchIO 1 does: RandomNoise draws and calls Noise, which draws nothing and still may not be kept."""

    class RandomScale(RandomizableTransform):
        def __call__(self, given):
            self.randomize(None)
            return Compose([ScaleIntensityd("image", maxv=float(self.R.uniform()))])(given)

    Compose([RandomScale(), NormalizeIntensityd("image")])(item())
    found = timed(transforms, moment)
    assert list(found) == ["RandomScale", "NormalizeIntensityd"]
    assert [event["is_random"] for event in found.values()] == [True, False]


def test_a_list_of_items_is_one_call_each(transforms, moment):
    Compose([ScaleIntensityd("image")])([item(), item()])
    assert timed(transforms, moment)["ScaleIntensityd"]["num_calls"] == 2


def test_a_function_in_a_chain_has_its_own_name(transforms, moment):
    def window(given):
        return given

    Compose([window])(item())
    assert list(timed(transforms, moment)) == [window.__qualname__]


def test_what_is_not_counted_is_not_timed(transforms, moment):
    moment.counting = False
    Compose([ScaleIntensityd("image")])(item())
    assert timed(transforms, moment) == {}


def test_a_transform_that_fails_is_counted_and_its_error_is_the_programs_own(transforms, moment):
    with pytest.raises(RuntimeError, match="applying transform") as caught:
        Compose([Lambdad("image", lambda x: 1 / 0)])(item())
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert timed(transforms, moment)["Lambdad"]["num_calls"] == 1
    Compose([ScaleIntensityd("image")])(item())
    assert timed(transforms, moment)["ScaleIntensityd"]["self_s"] > 0


def test_threads_do_not_mix_their_chains(transforms, moment):
    chain = Compose([ScaleIntensityd("image")])
    threads = [threading.Thread(target=lambda: [chain(item()) for _ in range(20)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert timed(transforms, moment)["ScaleIntensityd"]["num_calls"] == 60


def test_torchio_transforms_are_timed_with_those_they_compose(transforms, moment):
    tio = pytest.importorskip("torchio", minversion="2.0")
    transforms.start()
    subject = tio.Subject(image=tio.ScalarImage(torch.rand(1, 6, 6, 6)))
    chain = tio.Compose([tio.ZNormalization(), tio.Flip(axes=0, flip_probability=0.5)])
    chain(subject)
    found = timed(transforms, moment)
    names = [name for name, event in found.items() if event["library"] == "torchio"]
    standardize = type(tio.ZNormalization()).__name__
    assert names[:2] == ["Compose", standardize]
    assert {name: event["num_calls"] for name, event in found.items()} == dict.fromkeys(found, 1)
    assert not found[standardize]["is_random"]
    assert found[names[2]]["is_random"]


def test_batchgenerators_of_both_versions_are_timed(transforms, moment):
    mirror = pytest.importorskip("batchgenerators.transforms.spatial_transforms")
    utility = pytest.importorskip("batchgenerators.transforms.utility_transforms")
    from batchgeneratorsv2.transforms.intensity.brightness import MultiplicativeBrightnessTransform
    from batchgeneratorsv2.transforms.intensity.contrast import BGContrast
    from batchgeneratorsv2.transforms.utils.compose import ComposeTransforms
    from batchgeneratorsv2.transforms.utils.random import RandomTransform

    transforms.start()
    data = np.ones((1, 1, 4, 4, 4), np.float32)
    mirror.MirrorTransform()(data=data, seg=data.copy())
    utility.NumpyToTensor(["data"])(data=data)
    bright = MultiplicativeBrightnessTransform(BGContrast((0.75, 1.25)), synchronize_channels=True)
    ComposeTransforms([RandomTransform(bright, apply_probability=1.0)])(image=torch.ones(1, 4, 4, 4))
    found = timed(transforms, moment)
    assert {name: (event["library"], event["is_random"]) for name, event in found.items()} == {
        "MirrorTransform": ("batchgenerators", True),
        "NumpyToTensor": ("batchgenerators", False),
        "ComposeTransforms": ("batchgeneratorsv2", True),
        "RandomTransform": ("batchgeneratorsv2", True),
        "MultiplicativeBrightnessTransform": ("batchgeneratorsv2", True),
    }


@pytest.fixture
def torchvision(monkeypatch):
    """Modules of torchvision's shape: older transforms without a base, newer ones with, a `Compose` in both."""
    source = """
import torch
class Compose:
    def __init__(self, transforms): self.transforms = transforms
    def __call__(self, img):
        for t in self.transforms: img = t(img)
        return img
class RandomHorizontalFlip(torch.nn.Module):
    def __init__(self, p=0.5):
        super().__init__()
        self.p = p
    def forward(self, img): return img
"""
    newer = """
import torch
class Transform(torch.nn.Module):
    def forward(self, *inputs): return inputs[0]
class Normalize(Transform): pass
class ColorJitter(Transform):
    def forward(self, *inputs): return super().forward(*inputs)
"""
    modules = {}
    for name, text in (("torchvision.transforms.transforms", source), ("torchvision.transforms.v2._transform", newer)):
        modules[name] = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, modules[name])
        exec(text, vars(modules[name]))
    return modules


def test_torchvision_transforms_of_both_kinds_are_timed(torchvision, moment):
    older, newer = torchvision.values()
    before = vars(older.Compose)["__call__"], vars(newer.Transform)["forward"]
    transforms = TransformTimer(moment)
    transforms.start()
    older.Compose([older.RandomHorizontalFlip(), newer.Normalize(), newer.ColorJitter()])(torch.ones(1))
    transforms.stop()
    found = timed(transforms, moment)
    assert {name: (event["num_calls"], event["is_random"]) for name, event in found.items()} == {
        "Compose": (1, True),
        "RandomHorizontalFlip": (1, True),
        "Normalize": (1, False),
        "ColorJitter": (1, True),
    }
    assert (vars(older.Compose)["__call__"], vars(newer.Transform)["forward"]) == before


def test_a_transform_that_is_no_plain_function_is_left_alone(torchvision, moment):
    base = torchvision["torchvision.transforms.v2._transform"].Transform

    class Own(base):
        forward = staticmethod(lambda image: image + 1)

    transforms = TransformTimer(moment)
    transforms.start()
    assert Own()(torch.ones(1)).tolist() == [2.0]
    transforms.stop()


def test_names_that_two_libraries_share_are_told_with_the_library(torchvision, transforms, moment):
    transforms.start()
    older = torchvision["torchvision.transforms.transforms"]
    older.Compose([older.RandomHorizontalFlip()])(torch.ones(1))
    Compose([Compose([ScaleIntensityd("image")])])(item())
    assert {"torchvision.Compose", "monai.Compose"} <= set(timed(transforms, moment))


def test_stop_leaves_the_libraries_as_they_were(moment):
    from monai.transforms import transform

    before = transform._apply_transform
    transforms = TransformTimer(moment)
    transforms.start()
    transforms.start()
    assert transform._apply_transform is not before
    assert inspect.signature(transform._apply_transform) == inspect.signature(before)
    transforms.stop()
    assert transform._apply_transform is before


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (mt.Spacingd("image", (1, 1, 1)), False),
        (mt.RandAffined("image", prob=1.0), True),
        (mt.Compose([mt.ScaleIntensityd("image")]), False),
        (mt.Compose([mt.ScaleIntensityd("image"), mt.Compose([mt.RandFlipd("image")])]), True),
        (mt.OneOf([mt.ScaleIntensityd("image")]), True),
        (lambda item: item, False),
        (abs, False),
    ],
)
def test_of_monai(transform, expected):
    assert may_differ(transform) is expected


def test_of_torchio():
    tio = pytest.importorskip("torchio", minversion="2.0")
    assert may_differ(tio.Flip(flip_probability=0.5))
    assert not may_differ(tio.Flip(axes=0))
    assert may_differ(tio.Affine(degrees=(-10, 10)))
    assert not may_differ(tio.Affine(degrees=10))
    assert not may_differ(tio.ZNormalization())
    assert may_differ(tio.ZNormalization(p=0.5))
    assert not may_differ(tio.Compose([tio.ZNormalization()]))
    assert may_differ(tio.Compose([tio.ZNormalization(), tio.Noise(std=0.1)]))


def test_of_torchio_1_by_its_base():
    class RandomTransform:
        pass

    class AnyName(RandomTransform):
        pass

    assert may_differ(AnyName())


class Fixed:
    def __init__(self):
        self.size = (4, 4, 4)

    def __call__(self, item):
        return item[: self.size[0]]


class Drawing(Fixed):
    """Draws in a method that its call uses."""

    def offset(self):
        return np.random.default_rng().integers(0, 4)

    def __call__(self, item):
        return item[self.offset() :]


class OfADrawing(Drawing):
    pass


def noisy(item):
    return [voxel + torch.randn(1) for voxel in item]


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (Fixed(), False),
        (Drawing(), True),
        (OfADrawing(), True),
        (noisy, True),
        (lambda item: (lambda: random.random())(), True),
        (lambda item: torch.nn.functional.grid_sample(item, item), False),
        (mt.Lambda(noisy), True),
        (mt.Lambdad(("image", "label"), [abs, noisy]), True),
        (mt.Lambdad("image", abs), False),
    ],
)
def test_own_code_is_told_by_the_names_it_uses(transform, expected):
    assert [may_differ(transform) for _ in range(2)] == [expected, expected]


def test_a_chain_that_holds_itself_is_answered():
    class Chain:
        transforms = ()

    chain = Chain()
    chain.transforms = [chain]
    assert may_differ(chain) is False


@pytest.fixture
def watched_chains():
    imports, watched = Imports(pytest.fail), chains.Chains()
    watched.hook(imports.when_imported)
    yield
    watched.unhook()


def test_each_transform_is_told_with_its_own_line_of_the_chain(watched_chains, transforms, moment):
    Compose(
        [
            ScaleIntensityd("image"),
            RandFlipd("image", prob=0.5),
        ]
    )(item())
    found = timed(transforms, moment)
    assert [event["line"] for event in found.values()] == [
        'ScaleIntensityd("image"),',
        'RandFlipd("image", prob=0.5),',
    ]
    numbers = [int(event["where"].rpartition(":")[2]) for event in found.values()]
    assert numbers[1] == numbers[0] + 1
    # A list that is made elsewhere has no line here.
    listed = [ScaleIntensityd("image")]
    Compose(listed)
    assert chains.written_at(listed[0]) == chains.NOWHERE
