"""Of many classes that a fold lacks, the first are named."""

from __future__ import annotations

from pathlib import Path

from voxelocity.core.cases import Cases
from voxelocity.core.volume import VolumeRef
from voxelocity.planning import absent_classes


def test_many_absent_classes_are_counted():
    refs = tuple(VolumeRef(case_id=name, images=(Path(name),), label=Path(name), fold=n) for n, name in enumerate("ab"))
    labels = {0: "background", **{value: f"class {value}" for value in range(1, 41)}}
    cases = Cases(name="x", root=Path("x"), layout="csv", channels=("CT",), labels=labels, refs=refs)
    texts = absent_classes(cases, 0, {})
    assert len(texts) == 17
    assert texts[0].startswith("no held-out case of fold 0 contains class 1,")
    assert texts[-1] == "64 more classes are in no held-out or in no training case of fold 0"
