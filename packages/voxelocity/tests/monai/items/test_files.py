"""A changed byte in an archive of torch's is found, wherever it lies."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch

from voxelocity.monai.items.files import first_damaged


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "item.pt"
    torch.save({"image": torch.arange(5000.0), "label": torch.ones(300, dtype=torch.uint8)}, path)
    return path


@pytest.mark.parametrize("record", ["item/data/0", "item/data/1", "item/data.pkl"])
def test_one_changed_bit_is_found_with_its_record(archive: Path, record: str) -> None:
    with zipfile.ZipFile(archive) as opened:
        stored = opened.read(record)
    data = bytearray(archive.read_bytes())
    data[data.index(stored) + len(stored) // 2] ^= 1
    archive.write_bytes(data)
    assert first_damaged(archive) == record
