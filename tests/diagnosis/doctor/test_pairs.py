from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from voxelocity.diagnosis.doctor.pairs import PAIRS


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "-".join(pair.versions))
def test_each_entry_names_versions_costs_cure_and_an_address(pair):
    assert all(len(SpecifierSet(versions)) > 0 for versions in pair.versions.values())
    assert pair.level != "ok"
    assert pair.costs
    assert pair.cure
    assert pair.source.startswith("https://")
