"""Names of files: which are one scan, and which belong to another."""

import pytest

from voxelocity.core import staging
from voxelocity.core.scan_formats import SCAN_ENDINGS, stem_of, without_companions


def test_voxels_are_left_out_only_where_their_header_is(tmp_path):
    names = ["a.hdr", "a.img", "B.HDR", "B.IMG", "c.img", "d.nhdr", "d.raw.gz", "e.mhd", "e.zraw", "f.raw", "p/a.img"]
    assert without_companions(names) == ["a.hdr", "B.HDR", "c.img", "d.nhdr", "e.mhd", "f.raw", "p/a.img"]


@pytest.mark.parametrize("ending", SCAN_ENDINGS)
def test_a_case_is_named_without_the_whole_ending(ending):
    assert stem_of(f"a.b{ending}") == stem_of(f"a.b{ending.upper()}") == "a.b"


def test_voxels_are_staged_with_their_header(tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "_stages", {})
    for name in ("a.hdr", "a.img", "b.hdr"):
        (tmp_path / name).touch()
    asked = []
    staging.register(tmp_path, lambda path, is_whole: asked.append((path.name, is_whole)) or path)
    for name, is_whole in (("a.hdr", True), ("a.hdr", False), ("b.hdr", True)):
        staging.stage(tmp_path / name, is_whole=is_whole)
    assert asked == [("a.img", True), ("a.hdr", True), ("a.hdr", False), ("b.hdr", True)]
