"""The contract of every format of scans, with files that other programs write."""

from __future__ import annotations

import gzip
import sys

import nibabel as nib
import numpy as np
import SimpleITK
from scipy.io import netcdf_file

from shared.dicom_series import ORIGIN_LPS, SPACING_MM, STEP_MM, write_series
from voxelocity.core.scan_formats import DICOM, SCAN_ENDINGS, SCAN_FORMATS
from voxelocity.data.decode.formats import CODECS
from voxelocity.testing.format_contract import FormatContract

# Of gzip, a time and a system, which no checksum protects.
_GZIP_HEADER_BYTES = 10
# Of bzip2, the size of its blocks.
_BZIP2_HEADER_BYTES = 4


class _OfNibabel(FormatContract):
    kind: type

    def save(self, path, voxels_cxyz, affine):
        array = voxels_cxyz[0] if len(voxels_cxyz) == 1 else voxels_cxyz.transpose(1, 2, 3, 0)
        nib.save(self.kind(array, affine), path)

    def packed(self, path):
        if self.ending == ".nii.bz2":
            return path, _BZIP2_HEADER_BYTES
        return (path, _GZIP_HEADER_BYTES) if self.ending in (".nii.gz", ".mgz") else None


class TestNiftiPacked(_OfNibabel):
    ending, kind = ".nii.gz", nib.Nifti1Image


class TestNifti(_OfNibabel):
    ending, kind = ".nii", nib.Nifti1Image


class TestNiftiPackedByBzip2(_OfNibabel):
    ending, kind = ".nii.bz2", nib.Nifti1Image


class TestPair(_OfNibabel):
    ending, kind = ".hdr", nib.Nifti1Pair


class TestPairPacked(_OfNibabel):
    ending, kind = ".hdr.gz", nib.Nifti2Pair

    def packed(self, path):
        return path.with_name(path.name.replace(".hdr", ".img")), _GZIP_HEADER_BYTES


class TestMgz(_OfNibabel):
    ending, kind = ".mgz", nib.MGHImage


class TestMgh(_OfNibabel):
    ending, kind = ".mgh", nib.MGHImage


class TestMinc(FormatContract):
    """nibabel does not write MINC; its variables are written as minc-tools write them."""

    ending, dtypes = ".mnc", ("float32",)

    def save(self, path, voxels_cxyz, affine):
        steps = np.linalg.norm(affine[:3, :3], axis=0)
        cosines = affine[:3, :3] / steps
        starts = np.linalg.solve(cosines, affine[:3, 3])
        stored = voxels_cxyz.transpose(0, 3, 2, 1)
        names = ("time", "zspace", "yspace", "xspace")[len(stored) == 1 :]
        stored = stored if len(stored) > 1 else stored[0]
        with netcdf_file(path, "w") as file:
            for name, size in zip(names, stored.shape, strict=True):
                file.createDimension(name, size)
                axis = file.createVariable(name, "i", ())
                axis[...] = 0
                axis.spacing = b"regular__"
                if name != "time":
                    place = "xyz".index(name[0])
                    axis.step, axis.start = steps[place], starts[place]
                    axis.direction_cosines = cosines[:, place]
            for name, value in (("image-min", 0.0), ("image-max", 1.0)):
                file.createVariable(name, "d", ())[...] = value
            image = file.createVariable("image", "f", names)
            image[:] = stored


class TestMincPacked(TestMinc):
    ending = ".mnc.gz"

    def save(self, path, voxels_cxyz, affine):
        super().save(path, voxels_cxyz, affine)
        path.write_bytes(gzip.compress(path.read_bytes()))

    def packed(self, path):
        return path, _GZIP_HEADER_BYTES


class _OfItk(FormatContract):
    start = b""

    def save(self, path, voxels_cxyz, affine):
        is_vector = len(voxels_cxyz) > 1
        stored = voxels_cxyz.transpose(3, 2, 1, 0) if is_vector else voxels_cxyz[0].T
        image = SimpleITK.GetImageFromArray(np.ascontiguousarray(stored), isVector=is_vector)
        lps, steps = np.diag([-1, -1, 1, 1]) @ affine, np.linalg.norm(affine[:3, :3], axis=0)
        image.SetSpacing(steps.tolist())
        image.SetDirection((lps[:3, :3] / steps).ravel().tolist())
        image.SetOrigin(lps[:3, 3].tolist())
        SimpleITK.WriteImage(image, str(path), True)

    def packed(self, path):
        content = path.read_bytes()
        return path, content.index(self.start) + len(self.start)


class TestNrrd(_OfItk):
    ending, start = ".nrrd", b"\n\n"

    def packed(self, path):
        file, start = super().packed(path)
        return file, start + _GZIP_HEADER_BYTES


class TestMha(_OfItk):
    ending, start = ".mha", b"ElementDataFile = LOCAL\n"


class TestNhdr(_OfItk):
    ending = ".nhdr"

    def packed(self, path):
        return path.with_suffix(".raw.gz"), _GZIP_HEADER_BYTES


class TestMhd(_OfItk):
    ending = ".mhd"

    def packed(self, path):
        return path.with_suffix(".zraw"), 0


class TestDicom(FormatContract):
    """A series is a folder of files that have no names of their own."""

    ending, format, dtypes, num_channels = "", DICOM, ("int16",), 1
    affine = np.diag([-SPACING_MM[1], -SPACING_MM[0], STEP_MM, 1.0])
    affine[:3, 3] = np.multiply(ORIGIN_LPS, (-1, -1, 1))

    def save(self, path, voxels_cxyz, affine):
        write_series(path, voxels_cxyz[0].T)


def test_every_ending_has_its_contract_and_every_format_its_entry():
    tried = [kind for name, kind in vars(sys.modules[__name__]).items() if name.startswith("Test")]
    assert sorted(kind.ending for kind in tried) == sorted(["", *SCAN_ENDINGS])
    assert [codec.format for codec in CODECS] == list(SCAN_FORMATS)
    names = [ending for entry in SCAN_FORMATS for ending in entry.endings]
    assert sorted(set(names)) == sorted(names)
