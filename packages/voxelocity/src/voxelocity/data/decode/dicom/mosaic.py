"""Siemens mosaics: the planes of a volume as tiles of one picture, whose places follow from its private header.

The picture lies as if one plane were as large as it, so that its first pixel is not that of the first plane. Source:
https://nipy.org/nibabel/dicom/dicom_mosaic.html; dcm2niix does the same.
"""

from __future__ import annotations

import contextlib
import math
import struct
from dataclasses import replace
from typing import Any

import numpy as np

from voxelocity.core.volume import Array
from voxelocity.data.decode.dicom.files import Slice, damage_errors, named_damage, read_dataset

_HEADER_BLOCK, _HEADER = (0x0029, "SIEMENS CSA HEADER"), 0x10
_FIELD_BYTES, _ITEM_BYTES = 84, 16
# Where later scanners give the number of planes outside of that header.
_NUM_PLANES = (0x0019, 0x100A)
_MOST_PLANES = 1 << 12
# Of two normals of length 1: below it they do not lie on one line.
_LEAST_PARALLEL = 0.99


def is_mosaic(picture: Slice) -> bool:
    """Whether the file says that its picture is one."""
    return "MOSAIC" in picture.image_type


def tiles_as_slices(picture: Slice) -> list[Slice]:
    """The planes of a mosaic, the first tile first; the picture itself where the file does not say what they are.

    Raises:
        ScanError: the file is damaged.
    """
    with named_damage(picture.path):
        num_planes, normal, b_value = _described(read_dataset(picture.path, with_pixels=False))
    side = math.isqrt(max(0, num_planes - 1)) + 1
    rows, columns = picture.shape
    position, directions, spacing_mm, step_mm = (
        picture.position_mm,
        picture.directions,
        picture.spacing_mm,
        picture.step_mm,
    )
    if not (position and directions and spacing_mm and step_mm) or not 0 < num_planes <= _MOST_PLANES:
        return [picture]
    if rows % side or columns % side:
        return [picture]
    along_row, along_column = np.array(directions[:3]), np.array(directions[3:])
    across = np.cross(along_row, along_column)
    if normal is not None:
        cosine = float(across @ normal)
        if not abs(cosine) >= _LEAST_PARALLEL:
            return [picture]
        across = np.sign(cosine) * across
    shape = rows // side, columns // side
    first = (
        np.array(position)
        + along_row * spacing_mm[1] * (columns - shape[1]) / 2
        + along_column * spacing_mm[0] * (rows - shape[0]) / 2
    )
    apart = picture.apart if b_value is None else (("DiffusionBValue", b_value), *picture.apart)
    return [
        replace(
            picture,
            uid=f"{picture.uid}.{plane + 1}",
            frame=plane,
            num_tiles=side,
            shape=shape,
            position_mm=tuple((first + plane * step_mm * across).tolist()),
            apart=apart,
        )
        for plane in range(num_planes)
    ]


def _described(dataset: Any) -> tuple[int, Array | None, float | None]:
    """The number of planes, 0 where nothing says so; their normal in LPS; the b-value."""
    num_planes, normal, b_value = 0, None, None
    # The header is of private form, and may be cut or garbled by what removed names from the file.
    with contextlib.suppress(*damage_errors()):
        fields = _fields(dataset.private_block(*_HEADER_BLOCK)[_HEADER].value)
        num_planes = int((fields.get("NumberOfImagesInMosaic") or ["0"])[0])
        given = [float(text) for text in fields.get("SliceNormalVector", ())]
        normal = np.array(given) if len(given) == 3 else None
        b_value = float(fields["B_value"][0]) if fields.get("B_value") else None
    if num_planes == 0 and _NUM_PLANES in dataset:
        value = dataset[_NUM_PLANES].value
        num_planes = int.from_bytes(value[:2], "little") if isinstance(value, bytes) else int(value)
    return num_planes, normal, b_value


def _fields(content: bytes) -> dict[str, list[str]]:
    """The texts of each field of a CSA header, of either version; see https://nipy.org/nibabel/dicom/siemens_csa.html.

    Raises:
        ValueError: a length leads out of the header.
        struct.error: it ends too early.
    """
    is_second = content.startswith(b"SV10")
    at = 8 if is_second else 0
    (num_fields,) = struct.unpack_from("<i", content, at)
    at += 8
    found: dict[str, list[str]] = {}
    # In the first version, lengths are counted from the number of items of the first field.
    start: int | None = None
    for _ in range(num_fields):
        name, _, _, _, num_items, _ = struct.unpack_from("<64si4s3i", content, at)
        at += _FIELD_BYTES
        start = num_items if start is None else start
        texts = []
        for _ in range(num_items):
            lengths = struct.unpack_from("<4i", content, at)
            at += _ITEM_BYTES
            length = lengths[1] if is_second else lengths[0] - start
            if not 0 <= length <= len(content) - at:
                if is_second:
                    raise ValueError(f"an item has {length} bytes")
                break
            texts.append(content[at : at + length].partition(b"\0")[0].decode("latin-1").strip())
            # Items begin at multiples of four bytes.
            at += -(-length // 4) * 4
        found[name.partition(b"\0")[0].decode("latin-1")] = [text for text in texts if text]
    return found
