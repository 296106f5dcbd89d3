"""Attributes that are exchanged and put back."""

from __future__ import annotations

from voxelocity.diagnosis.recorder.patches import Patches


class Base:
    def call(self) -> str:
        return "base"


def test_attribute_of_a_base_class_is_not_left_behind_in_the_class() -> None:
    class Derived(Base):
        pass

    patches = Patches()
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
    patches = Patches()
    patches.put(Owner, "call", staticmethod(lambda: 2))
    assert Owner.call() == 2
    patches.restore()
    assert vars(Owner)["call"] is before


def test_what_somebody_else_exchanged_meanwhile_stays_theirs() -> None:
    class Owner:
        value = 1

    patches = Patches()
    patches.put(Owner, "value", 2)
    Owner.value = 3
    patches.restore()
    assert Owner.value == 3


def test_attribute_that_was_exchanged_twice_gets_its_first_value_back() -> None:
    class Owner:
        value = 1

    patches = Patches()
    patches.put(Owner, "value", 2)
    patches.put(Owner, "value", 3)
    patches.restore()
    assert Owner.value == 1
