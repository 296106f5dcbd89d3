"""Names of a package that are imported at their first use."""

import sys
import types

import pytest

from voxelocity_observe.core.first_use import first_use


def test_a_name_is_imported_once_when_it_is_used(monkeypatch):
    package, inner = types.ModuleType("made_up"), types.ModuleType("made_up.inner")
    package.__path__ = []
    inner.value = [1]
    monkeypatch.setitem(sys.modules, "made_up", package)
    monkeypatch.setitem(sys.modules, "made_up.inner", inner)
    package.__getattr__ = first_use("made_up", {"inner": ("value",)})
    assert "value" not in vars(package)
    assert package.value is inner.value
    assert vars(package)["value"] is inner.value
    with pytest.raises(AttributeError, match="module 'made_up' has no attribute 'other'"):
        package.other  # noqa: B018


@pytest.mark.parametrize("name", ["voxelocity.step", "voxelocity.infer", "voxelocity.report"])
def test_every_name_that_a_package_offers_is_there(name):
    __import__(name)
    package = sys.modules[name]
    assert all(getattr(package, offered) is not None for offered in package.__all__)
