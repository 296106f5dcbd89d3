"""Names that `voxelocity.monai` lacks: what the error proposes can be imported and used."""

from __future__ import annotations

import importlib
import re

import monai.transforms
import numpy as np
import pytest

import voxelocity.monai


@pytest.mark.parametrize("name", ["ScaleIntensityd", "DiceCELoss", "UNet", "DiceMetric"])
def test_a_class_that_stays_monais_is_imported_from_where_it_is(name):
    with pytest.raises(ImportError, match=rf"voxelocity\.monai has no {name}: import it from MONAI") as caught:
        exec(f"from voxelocity.monai import {name}", {})
    found: dict[str, object] = {}
    exec(re.search(r"from \S+ import \w+", str(caught.value))[0], found)
    assert found[name].__name__ == name


@pytest.mark.parametrize("name", ["AddChanneld", "AddChannelDict", "AddChannel"])
def test_what_monai_removed_has_its_replacement_named(name):
    assert not hasattr(monai.transforms, name)
    with pytest.raises(
        ImportError, match=rf"voxelocity\.monai has no {name}: MONAI has removed it; use Ensure"
    ) as caught:
        importlib.import_module("voxelocity.monai").__getattr__(name)
    text = re.search(r"use (.*) from monai", str(caught.value))[1]
    transform = eval(text, {**vars(monai.transforms), "keys": ["image"]})
    image = np.zeros((4, 5, 6), np.float32)
    made = transform(image) if name == "AddChannel" else transform({"image": image})["image"]
    assert made.shape == (1, 4, 5, 6)


def test_other_names_are_missing_as_usual():
    assert not hasattr(voxelocity.monai, "NothingOfTheKind")
    with pytest.raises(ImportError, match="cannot import name 'NothingOfTheKind'"):
        exec("from voxelocity.monai import NothingOfTheKind", {})
