"""Ranges under MONAI's name: around what they should be, and nothing else changed."""

import copy
import inspect
import pickle
import sys

import monai.transforms as mt
import monai.utils
import numpy as np
import pytest
import torch
from monai.data import Dataset
from torch.utils.data import DataLoader, IterableDataset

from voxelocity.monai import CuCIM, Range, compile
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.spans import SpanRecorder
from voxelocity_observe.spans.scope import LISTENERS


class Recorder:
    """NVTX that writes down what is pushed and popped."""

    def __init__(self):
        self.events = []

    def rangePushA(self, name):  # noqa: N802
        self.events.append(name)

    def rangePop(self):  # noqa: N802
        self.events.append("<")


@pytest.fixture
def nvtx(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(torch._C, "_nvtx", recorder, raising=False)
    monkeypatch.setitem(sys.modules, "nvtx", None)  # torch's own is to be seen, also where NVIDIA's package is there
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/opt/tool.so")  # a profiler is attached
    monkeypatch.setattr(Range, "name_counter", type(Range.name_counter)(int))
    LISTENERS.forget()
    yield recorder
    LISTENERS.forget()


class Numbers(IterableDataset):
    def __iter__(self):
        yield from (1, 2)


def test_signatures_are_monais():
    for method in ("__init__", "__call__", "__exit__"):
        ours, theirs = (inspect.signature(getattr(owner, method)).parameters for owner in (Range, monai.utils.Range))
        assert [(p.name, p.default) for p in ours.values()] == [(p.name, p.default) for p in theirs.values()]


def test_transform_keeps_result_class_and_name(nvtx):
    image = np.arange(6.0).reshape(1, 2, 3)
    plain, ranged = mt.Flip(0), Range()(mt.Flip(0))
    assert isinstance(ranged, mt.Flip)
    assert type(ranged).__name__ == "Flip"
    assert torch.equal(ranged(image), plain(image))
    assert nvtx.events == ["Flip", "<"]


def test_names_are_counted_or_given_and_carry_the_wrapped_transform(nvtx, monkeypatch):
    monkeypatch.setattr("voxelocity.monai.cucim._say_that_cucim_is_missing", lambda: None)

    names = []
    for made in (Range()(mt.Flip(0)), Range()(mt.Flip(1)), Range("mine")(mt.Flip(1)), Range()(CuCIM("image_flip", 1))):
        nvtx.events.clear()
        made(np.zeros((1, 2, 2), np.float32))
        names.append(nvtx.events[0])
    assert names == ["Flip", "Flip_2", "mine", "CuCIM_image_flip"]


def test_chain_is_annotated_through_and_through_only_if_recursive(nvtx):
    def chain():
        return mt.Compose([mt.Flip(0), mt.Compose([mt.Rotate90()])])

    image = np.zeros((1, 2, 2), np.float32)
    Range()(chain())(image)
    assert nvtx.events == ["Compose", "<"]
    nvtx.events.clear()
    Range("all", recursive=True)(chain())(image)
    assert nvtx.events == ["all", "Flip", "<", "Compose_2", "Rotate90", "<", "<", "<"]
    assert [type(t).__name__ for t in Range(recursive=True)((mt.Flip(0), mt.Rotate90()))] == ["Flip", "Rotate90"]


def test_several_methods_are_distinguished(nvtx):
    class Both:
        def __call__(self):
            return 1

        def __getitem__(self, index):
            return index

    both = Range()(Both())
    assert (both(), both[3]) == (1, 3)
    assert nvtx.events == ["Both.__call__", "<", "Both.__getitem__", "<"]
    nvtx.events.clear()
    Range("n", methods="__call__", append_method_name=True)(Both())()
    assert nvtx.events == ["n.__call__", "<"]


def test_network_data_set_loader_and_iterables_have_ranges(nvtx):
    model = Range()(torch.nn.Sequential(torch.nn.ReLU()))
    assert torch.equal(model(torch.tensor([-1.0, 1.0])), torch.tensor([0.0, 1.0]))
    assert Range()(Dataset([5, 6]))[1] == 6
    assert list(Range()(DataLoader([1], batch_size=None))) == [1]
    assert list(Range()(Numbers())) == [1, 2]
    assert list(Range("items")(n for n in (7,))) == [7]
    expected = [("Sequential", 1), ("Dataset", 1), ("DataLoader", 2), ("Numbers", 3), ("items", 2)]
    assert nvtx.events == [event for name, times in expected for event in [name, "<"] * times]


def test_optimizer_has_a_range_under_and_over_a_scheduler(nvtx):
    for first in (True, False):
        parameter = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([parameter], lr=0.5)
        if first:
            optimizer = Range("sgd")(optimizer)
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
        if not first:
            optimizer = Range("sgd")(optimizer)
        nvtx.events.clear()
        parameter.grad = torch.ones(1)
        optimizer.step()
        scheduler.step()
        assert parameter.item() == pytest.approx(1 - 0.5 / 3)
        assert nvtx.events == ["sgd", "<"]


def test_function_and_class_can_be_decorated(nvtx):
    @Range()
    def double(x):
        return 2 * x

    @Range("built")
    class Adds:
        def __call__(self, x):
            return x + 1

    assert (double(2), double.__name__, Adds()(1), Adds()(2)) == (4, "double", 2, 3)
    assert nvtx.events == ["double", "<", "built", "<", "built", "<"]


def test_decorated_objects_are_copied_and_pickled_with_their_ranges(nvtx):
    image = np.arange(4, dtype=np.float32).reshape(1, 2, 2)
    model = torch.nn.Linear(2, 1)
    expected = model(torch.ones(2))
    for copied in (copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))):
        transform, network = copied(Range("flip")(mt.Flip(0))), copied(Range("net")(model))
        nvtx.events.clear()
        assert torch.equal(transform(image), mt.Flip(0)(image))
        assert "flip" in nvtx.events
        assert torch.equal(network(torch.ones(2)), expected)
        assert "net" in nvtx.events
        assert isinstance(network, torch.nn.Linear)


def test_pickle_of_a_decorated_object_is_a_plain_one_where_there_is_no_nvtx(nvtx, monkeypatch):
    pickled = pickle.dumps(Range("flip")(mt.Flip(0)))
    monkeypatch.setattr("voxelocity.monai.ranges.has_nvtx", lambda: False)
    assert type(pickle.loads(pickled)) is mt.Flip


def test_block_has_a_range_which_ends_although_it_raises(nvtx):
    with Range("load"), Range(), pytest.raises(ZeroDivisionError), Range():
        1 / 0  # noqa: B018
    assert nvtx.events == ["load", "context_1", "context_2", "<", "<", "<"]


def test_ranges_are_spans_that_a_recorder_sees_too(nvtx):
    with SpanRecorder() as recorder, Range("load"):
        Range("flip")(mt.Flip(0))(np.zeros((1, 2, 2), np.float32))
    assert [(record.name, record.depth) for record in recorder.take()] == [("flip", 1), ("load", 0)]


def test_range_ends_although_the_method_raises(nvtx):
    def fail(_):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        Range()(mt.Lambda(fail))(np.zeros(1))
    assert nvtx.events == ["Lambda", "<"]


def test_nothing_is_changed_where_there_is_no_nvtx(monkeypatch):
    monkeypatch.setattr("voxelocity.monai.ranges.has_nvtx", lambda: False)
    transform = mt.Flip(0)
    assert Range()(transform) is transform
    assert type(transform) is mt.Flip
    assert "__call__" not in vars(transform)
    with Range("block") as block:
        assert block.name == "block"


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Range()(object()), r"this object \[object\] is not recognized; name it with methods=..., or give"),
        (lambda: Range(methods="run")(mt.Flip(0)), "Flip has no method 'run'; name one that it has"),
        (lambda: Range()([1]), r"methods of list cannot be replaced \(.*\); put `with Range\(...\)` around its use"),
    ],
)
def test_what_has_no_method_to_wrap_is_refused(nvtx, make, named):
    with pytest.raises(InputError, match=named):
        make()


def test_a_transform_in_a_range_is_made_fast_as_without_one(nvtx):
    def chain():
        return mt.Compose(
            [mt.ScaleIntensityRange(0.0, 1.0, 0.0, 2.0), mt.RandFlip(1.0, 0), mt.OneOf([mt.RandFlip(1.0, 1)])]
        )

    data = torch.arange(8.0).reshape(1, 2, 2, 2)
    plain, ranged = compile(chain()), compile(Range(recursive=True)(chain()))
    nvtx.events.clear()
    expected = plain(data)
    assert nvtx.events == ["ScaleIntensityRange", "<", "RandFlip", "<", "RandFlip", "<"]
    nvtx.events.clear()
    assert torch.equal(ranged(data), expected)
    assert nvtx.events.count("RandFlip") == 2
    assert [row.how for row in ranged.plan().rows] == [row.how for row in plain.plan().rows]
