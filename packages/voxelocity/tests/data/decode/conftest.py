from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import numpy.typing as npt
import pytest

Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Writes an array as NIfTI with nibabel, the peer."""

    def write(
        name: str,
        array: npt.NDArray[np.generic],
        affine: npt.NDArray[np.float64] | None = None,
        edit: Callable[[nib.Nifti1Header], None] | None = None,
        kind: type[nib.Nifti1Image] = nib.Nifti1Image,
    ) -> Path:
        image = kind(array, np.eye(4) if affine is None else affine)
        if edit is not None:
            edit(image.header)
            # Without an affine of its own nibabel keeps what the header says.
            image = kind(array, None, image.header)
        image.to_filename(tmp_path / name)
        return tmp_path / name

    return write


@pytest.fixture
def patch_header(tmp_path: Path) -> Callable[[Path, int, bytes], Path]:
    """Overwrites bytes of an unpacked .nii file, for headers that nibabel refuses to write."""

    def patch(path: Path, offset: int, content: bytes) -> Path:
        data = bytearray(path.read_bytes())
        data[offset : offset + len(content)] = content
        path.write_bytes(data)
        return path

    return patch
