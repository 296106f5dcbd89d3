"""nnU-Net's folders of data sets, empty."""

import pytest

from voxelocity.nnunet.preprocess import fingerprint


@pytest.fixture
def places(tmp_path, monkeypatch):
    for part in ("raw", "preprocessed"):
        (tmp_path / part).mkdir()
        monkeypatch.setenv(f"nnUNet_{part}", str(tmp_path / part))
    # In place of a hundred million.
    monkeypatch.setattr(fingerprint, "_NUM_SAMPLES", 60_000)
    return tmp_path
