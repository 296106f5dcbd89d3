from __future__ import annotations

import copy
import pickle

import pytest
from monai.transforms import EnsureChannelFirstd, Orientationd, RandFlipd, ScaleIntensityRanged, Spacing, Spacingd

from voxelocity.monai import deterministic
from voxelocity.monai.deterministic import faster, why_not


def test_a_class_of_the_users_own_is_never_replaced():
    class MySpacing(Spacing):
        pass

    transform = MySpacing((1, 1, 1))
    assert faster(transform) is None
    assert why_not(transform) == "MySpacing is a subclass of Spacing, which may change its behavior"


@pytest.mark.parametrize("transform", [EnsureChannelFirstd("a"), RandFlipd("a"), print])
def test_what_is_fast_random_or_unknown_is_left_alone(transform):
    assert faster(transform) is None
    assert why_not(transform) == f"{type(transform).__name__} has no faster equivalent"


def test_without_compiled_loops_nothing_is_replaced(monkeypatch):
    monkeypatch.setattr(deterministic.native, "has_loops", lambda: False)
    monkeypatch.setattr(deterministic.native, "why_not", lambda: "loops.so does not exist; build it")
    assert faster(Spacing((1, 1, 1))) is None
    assert why_not(Spacing((1, 1, 1))) == "loops.so does not exist; build it"


@pytest.mark.parametrize(
    "transform",
    [Spacingd("a", (1, 1, 1)), Orientationd("a", "RAS", labels=None), ScaleIntensityRanged("a", 0, 2, 0, 1)],
    ids=lambda transform: type(transform).__name__,
)
def test_the_transform_is_left_as_it_is(transform, make_image):
    before, parts = pickle.dumps(transform), copy.copy(vars(transform))
    assert why_not(transform) == ""
    faster(transform)({"a": make_image((1, 3, 4, 5))})
    assert pickle.dumps(transform) == before
    assert all(vars(transform)[name] is part for name, part in parts.items())
