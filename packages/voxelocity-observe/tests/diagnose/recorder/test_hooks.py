"""Calling back when a module is imported, and attributes that are exchanged and put back."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from voxelocity_observe.diagnose.recorder.hooks import AttributePatches, Imports


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that can be imported and is not yet."""
    (tmp_path / "made_for_a_test.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "made_for_a_test"
    sys.modules.pop("made_for_a_test", None)


def fail(what: str) -> None:
    raise AssertionError(what)


def test_callback_gets_the_module_once_it_is_whole_and_leaves_no_trace(module: str) -> None:
    imports = Imports(fail)
    seen: list[Any] = []
    imports.when_imported(module, lambda m: seen.append(m.value))
    assert seen == []
    found = importlib.import_module(module)
    assert seen == [3]
    assert type(found.__loader__).__module__ != Imports.__module__
    assert found.__spec__.loader is found.__loader__
    imports.stop()
    assert imports not in sys.meta_path


def test_module_that_is_imported_already_is_told_at_once() -> None:
    seen: list[Any] = []
    imports = Imports(fail)
    imports.when_imported("json", seen.append)
    assert [m.__name__ for m in seen] == ["json"]
    assert imports not in sys.meta_path


def test_callback_that_raises_is_told_and_the_import_goes_on(module: str) -> None:
    told: list[str] = []
    imports = Imports(told.append)
    imports.when_imported(module, lambda m: m.missing)
    assert importlib.import_module(module).value == 3
    assert told == ["made_for_a_test could not be watched"]
    imports.stop()


def test_module_that_is_not_there_is_missing_as_ever() -> None:
    imports = Imports(fail)
    imports.when_imported("no_such_module_at_all", lambda m: None)
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        importlib.import_module("no_such_module_at_all")
    imports.stop()


def test_stop_forgets_who_waits(module: str) -> None:
    imports = Imports(fail)
    imports.when_imported(module, lambda m: fail("called"))
    imports.stop()
    assert importlib.import_module(module).value == 3


@pytest.mark.parametrize("imports_more", [True, False])
def test_module_that_is_being_imported_when_asked_for_is_told_of_once_it_is_whole(
    imports_more: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that imports torch, at which the hooks are set."""
    name, other = "half_made_for_a_test", "another_made_for_a_test"
    imports = Imports(fail)
    seen: list[Any] = []
    monkeypatch.setattr(
        sys, "asking", lambda: imports.when_imported(name, lambda m: seen.append(m.value)), raising=False
    )
    (tmp_path / f"{name}.py").write_text("import sys\nsys.asking()\nvalue = 3\n")
    (tmp_path / f"{other}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        importlib.import_module(name)
        assert seen == []
        if imports_more:
            importlib.import_module(other)
        else:
            imports.catch_up()
        assert seen == [3]
        imports.catch_up()
        assert seen == [3]
    finally:
        imports.stop()
        sys.modules.pop(name, None)
        sys.modules.pop(other, None)


class Base:
    def call(self) -> str:
        return "base"


def test_attribute_of_a_base_class_is_not_left_behind_in_the_class() -> None:
    class Derived(Base):
        pass

    patches = AttributePatches()
    patches.put(Derived, "call", lambda self: "ours")
    assert Derived().call() == "ours"
    patches.restore()
    assert "call" not in vars(Derived)
    assert Derived().call() == "base"


def test_static_methods_are_put_back_as_such() -> None:
    class Owner:
        @staticmethod
        def call() -> int:
            return 1

    before = vars(Owner)["call"]
    patches = AttributePatches()
    patches.put(Owner, "call", staticmethod(lambda: 2))
    assert Owner.call() == 2
    patches.restore()
    assert vars(Owner)["call"] is before


def test_what_somebody_else_exchanged_meanwhile_stays_theirs() -> None:
    class Owner:
        value = 1

    patches = AttributePatches()
    patches.put(Owner, "value", 2)
    Owner.value = 3
    patches.restore()
    assert Owner.value == 3


def test_attribute_that_was_exchanged_twice_gets_its_first_value_back() -> None:
    class Owner:
        value = 1

    patches = AttributePatches()
    patches.put(Owner, "value", 2)
    patches.put(Owner, "value", 3)
    patches.restore()
    assert Owner.value == 1
