"""Tests that every format of scans must pass (`data.decode.codec.Codec`). Subclass in a test, once for each ending.

class TestNifti(FormatContract):
    ending = ".nii"

    def save(self, path, voxels_cxyz, affine):
        nibabel.save(nibabel.Nifti1Image(voxels_cxyz.transpose(1, 2, 3, 0), affine), path)
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from voxelocity.core.scan_formats import SCAN_ENDINGS, ScanFormat, format_named
from voxelocity.core.volume import Array, Grid, VolumeRef
from voxelocity.data.decode import (
    label_values_in,
    read_case,
    read_header,
    read_scan,
    source_files,
    write_scan,
)
from voxelocity.data.decode.formats import CODECS
from voxelocity_observe.core.errors import OutputError, ScanError

_SHAPE = (9, 8, 7)
_FOREIGN = (b"", b"<html>not found</html>", bytes(2000), b"\x1f\x8b" + bytes(range(256)) * 8)
_NUM_FLIPS = 40
_STARTS_WITHIN_BYTES = 64 << 10


def example_voxels(dtype: str = "int16", num_channels: int = 1, shape: tuple[int, ...] = _SHAPE) -> Array:
    """Noise (c, x, y, z) of whole numbers that every type of values holds, equal for equal arguments."""
    return np.random.default_rng(0).integers(0, 100, (num_channels, *shape)).astype(dtype)


class FormatContract:
    """Tests of any format. The files are made by another program, in a folder of their own."""

    ending: str
    """Of the files; a folder, as of a DICOM series, has none."""
    affine: Array = np.array(
        [[0.0, -1.5, 0.0, 10.0], [1.2, 0.0, 2.0, -4.0], [-1.6, 0.0, 1.5, 7.5], [0.0, 0.0, 0.0, 1.0]]
    )
    """Of the scans that `save` makes, to RAS millimeters: oblique, with three spacings."""
    dtypes: tuple[str, ...] = ("uint8", "int16", "float32")
    num_channels = 2
    """The most channels in one file that are tried."""

    @property
    def format(self) -> ScanFormat:
        """The one that the ending stands for."""
        found = format_named(f"a{self.ending}")
        assert found is not None, "a format without a name says which it is"
        return found

    def save(self, path: Path, voxels_cxyz: Array, affine: Array) -> None:
        """Writes a scan by another program: packed, if the format can be."""
        raise NotImplementedError

    def packed(self, path: Path) -> tuple[Path, int] | None:
        """The file whose bytes, from this one on, a checksum protects; None if there is none."""
        return None

    def scan(self, folder: Path, voxels_cxyz: Array, name: str = "scan") -> Path:
        """A scan alone in a new folder."""
        place = folder / name
        place.mkdir()
        path = place / f"{name}{self.ending}"
        self.save(path, voxels_cxyz, self.affine)
        return path

    def test_voxels_and_their_place_are_those_that_another_program_wrote(self, tmp_path: Path) -> None:
        for dtype in self.dtypes:
            voxels = example_voxels(dtype)
            found, grid = read_scan(self.scan(tmp_path, voxels, dtype))
            assert found.dtype == dtype
            np.testing.assert_array_equal(found, voxels)
            assert grid.is_close(Grid.of(_SHAPE, self.affine), atol_mm=1e-4)

    def test_channels_come_first(self, tmp_path: Path) -> None:
        voxels = example_voxels("int16", self.num_channels)
        path = self.scan(tmp_path, voxels)
        assert read_header(path).num_channels == self.num_channels
        np.testing.assert_array_equal(read_scan(path)[0], voxels)

    def test_one_volume_is_read_alone(self, tmp_path: Path) -> None:
        voxels = example_voxels("float32", self.num_channels)
        path = self.scan(tmp_path, voxels.astype(self.dtypes[-1]))
        for number in range(1, self.num_channels + 1):
            found = read_case(VolumeRef(case_id="a", images=(path,), volume=number), label_values=()).image
            np.testing.assert_array_equal(found, voxels[number - 1 : number])
            assert found.base is None or found.base.nbytes <= 2 * found.nbytes, "the others stay in memory"
        for number in (0, self.num_channels + 1):
            with pytest.raises(ScanError, match=rf"case 'a': .*{path.name} has no volume {number}, but .*; choose one"):
                read_case(VolumeRef(case_id="a", images=(path,), volume=number), label_values=())

    def test_the_header_says_what_the_voxels_are(self, tmp_path: Path) -> None:
        path = self.scan(tmp_path, example_voxels())
        header = read_header(path)
        found, grid = read_scan(path)
        assert (np.dtype(header.read_dtype), header.num_channels, header.grid) == (found.dtype, len(found), grid)
        assert header.data_bytes == found.nbytes
        assert header.num_bytes == sum(file.stat().st_size for file in source_files(path))
        assert header.placement.form in ("sform", "qform", "patient")

    def test_the_beginning_of_a_file_has_the_header_if_the_format_says_so(self, tmp_path: Path) -> None:
        if not self.ending or not self.ending.endswith(self.format.begins_with_header):
            pytest.skip("a header of this format is read from whole files")
        path = self.scan(tmp_path, example_voxels(shape=(60, 50, 40)))
        expected, content = read_header(path), path.read_bytes()
        path.write_bytes(content[:_STARTS_WITHIN_BYTES].ljust(len(content), b"\0"))
        assert read_header(path) == expected

    def test_every_file_of_a_scan_is_a_source_of_it(self, tmp_path: Path) -> None:
        path = self.scan(tmp_path, example_voxels())
        place = path if path.is_dir() else path.parent
        assert sorted(source_files(path)) == sorted(place.iterdir())
        assert len(source_files(path)) == 1 or not self.format.is_one_file

    def test_scans_and_labels_of_the_format_make_a_case(self, tmp_path: Path) -> None:
        image, label = example_voxels(), (example_voxels() % 3 * 4).astype(self.dtypes[0])
        ref = VolumeRef(case_id="a", images=(self.scan(tmp_path, image),), label=self.scan(tmp_path, label, "label"))
        assert ref.label is not None
        assert label_values_in(ref.label) == (0, 4, 8)
        volume = read_case(ref, label_values=(0, 4, 8))
        np.testing.assert_array_equal(volume.image, image)
        np.testing.assert_array_equal(volume.label, label[0] // 4)

    def test_what_is_not_of_the_format_is_refused_in_words(self, tmp_path: Path) -> None:
        path = self.scan(tmp_path, example_voxels())
        files = source_files(path)
        for content in _FOREIGN:
            for file in files:
                file.write_bytes(content)
            for read in (read_header, read_scan):
                with pytest.raises(ScanError, match=rf"decode: .*{path.name}.*: .*; .+"):
                    read(path)
        for file in files:
            file.unlink()
        with pytest.raises(ScanError, match=rf"decode: .*{path.name}.*: .*; .+"):
            read_scan(path)

    def test_a_name_of_another_format_is_refused_in_words(self, tmp_path: Path) -> None:
        file = source_files(self.scan(tmp_path, example_voxels()))[0]
        for ending in SCAN_ENDINGS:
            if ending not in self.format.endings:
                renamed = tmp_path / f"renamed{ending}"
                renamed.write_bytes(file.read_bytes())
                with pytest.raises(ScanError, match=rf"decode: .*renamed{ending}: .*; .+"):
                    read_header(renamed)

    def test_a_scan_that_is_cut_off_is_refused(self, tmp_path: Path) -> None:
        path = self.scan(tmp_path, example_voxels(shape=(30, 20, 10)))
        file = source_files(path)[-1]
        whole = file.read_bytes()
        # Headers are shorter.
        for share in (0.7, 0.9):
            file.write_bytes(whole[: int(share * len(whole))])
            with pytest.raises(ScanError, match=r"decode: .*truncated.*; .+"):
                read_scan(path)

    def test_every_changed_bit_of_packed_voxels_is_refused(self, tmp_path: Path) -> None:
        path = self.scan(tmp_path, example_voxels())
        found = self.packed(path)
        if found is None:
            pytest.skip("no checksum protects the voxels")
        assert self.format.checked
        file, start = found
        whole, numbers = file.read_bytes(), np.random.default_rng(0)
        for at in numbers.integers(start, len(whole), _NUM_FLIPS):
            changed = bytearray(whole)
            changed[at] ^= 1 << int(numbers.integers(8))
            file.write_bytes(changed)
            with pytest.raises(ScanError, match=rf"decode: .*{file.name}.*: .*; .+"):
                read_scan(path)

    def test_a_library_that_is_missing_is_named_with_the_extra_that_brings_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not self.format.extra:
            pytest.skip("its library is always installed")
        path = self.scan(tmp_path, example_voxels())
        monkeypatch.setitem(sys.modules, self.format.package, None)
        words = rf"needs {self.format.package}, which is not installed; pip install 'voxelocity\[{self.format.extra}\]'"
        with pytest.raises(ScanError, match=words):
            read_header(path)

    def test_what_is_written_is_read_at_its_place(self, tmp_path: Path) -> None:
        encode = next(codec.encode for codec in CODECS if codec.format is self.format)
        if encode is None or self.ending not in self.format.written:
            pytest.skip("arrays are not written under this name")
        for dtype in ("uint8", "uint16", "int16", "float32"):
            voxels = (example_voxels(dtype)[0] * (400 if dtype == "uint16" else 1)).astype(dtype)
            path, again = tmp_path / f"{dtype}{self.ending}", tmp_path / f"again{self.ending}"
            for file, array in ((path, voxels), (again, np.asfortranarray(voxels))):
                write_scan(file, array, Grid.of(voxels.shape, self.affine))
            assert path.read_bytes() == again.read_bytes()
            found, grid = read_scan(path)
            np.testing.assert_array_equal(found[0], voxels)
            assert np.can_cast(voxels.dtype, found.dtype, "safe")
            assert grid.is_close(Grid.of(voxels.shape, self.affine), atol_mm=1e-4)
        with pytest.raises(OutputError, match=rf"decode: .*a{self.ending}: .* cannot store .*"):
            write_scan(tmp_path / f"a{self.ending}", voxels.astype("U3"), Grid.of(voxels.shape, self.affine))
        assert len(list(tmp_path.iterdir())) == 5, "nothing is left of what was refused"
