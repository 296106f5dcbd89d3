import numpy as np
import pytest


def _arcs(num, *, radius_mm, center_mm, numbers):
    """Noisy half circles of 20 points, half of them run backwards."""
    angle = np.linspace(0.0, np.pi, 20)
    shape = np.stack([np.cos(angle), 0.2 * np.sin(2 * angle), np.sin(angle)], axis=1)
    lines = radius_mm * (1.0 + 0.1 * numbers.standard_normal((num, 1, 1))) * shape + np.array(center_mm)
    lines += numbers.standard_normal((num, 1, 3))
    lines[::2] = lines[::2, ::-1]
    return lines.astype(np.float32)


@pytest.fixture
def bundles_file(tmp_path):
    """An array of two bundles of 24 streamlines."""
    numbers = np.random.default_rng(0)
    lines = [_arcs(24, radius_mm=30.0, center_mm=(x, 0.0, 10.0), numbers=numbers) for x in (-40.0, 40.0)]
    path = tmp_path / "tracts" / "arcs.npz"
    path.parent.mkdir()
    np.savez(path, points=np.concatenate(lines), bundle=np.repeat([0, 1], 24), names=np.array(["left", "right"]))
    return path
