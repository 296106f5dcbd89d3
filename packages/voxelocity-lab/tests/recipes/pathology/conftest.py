import numpy as np
import pytest
import tifffile
from PIL import Image

PINK, PURPLE = (228, 170, 200), (110, 60, 140)


def tissue(height, width, seed=0):
    """Pink tissue with purple disks of tumor, on glass at the right; pixels (y, x, 3) and the mask of the tumor."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    tumor = np.zeros((height, width), bool)
    for _ in range(4):
        middle, radius = rng.uniform((0.2 * height, 0.1 * width), (0.8 * height, 0.7 * width)), 0.12 * height
        tumor |= (y - middle[0]) ** 2 + (x - middle[1]) ** 2 < radius**2
    pixels = np.where(tumor[..., None], PURPLE, PINK) + rng.normal(0.0, 12.0, (height, width, 3))
    pixels[:, int(0.9 * width) :] = 244
    tumor[:, int(0.9 * width) :] = False
    return np.clip(pixels, 0, 255).astype(np.uint8), tumor


def write_pyramid(path, pixels, num_levels=3, micrometers=0.5):
    with tifffile.TiffWriter(path) as writer:
        for level in range(num_levels):
            each = np.ascontiguousarray(pixels[:: 2**level, :: 2**level])
            writer.write(
                each, tile=(64, 64), photometric="rgb" if each.ndim == 3 else "minisblack", compression="deflate",
                subfiletype=int(level > 0), resolution=(1e4 / (micrometers * 2**level),) * 2,
                resolutionunit="CENTIMETER",
            )  # fmt: skip
    return path


@pytest.fixture
def slide_file(tmp_path):
    return write_pyramid(tmp_path / "slide.tiff", tissue(320, 400)[0])


@pytest.fixture
def tiles(tmp_path):
    """Photographs with masks, as the CAMELYON tiles come."""
    folder = tmp_path / "tiles"
    (folder / "images").mkdir(parents=True)
    (folder / "masks").mkdir()
    rows = ["id,fold"]
    for number in range(4):
        pixels, tumor = tissue(192, 192, seed=number)
        Image.fromarray(pixels).save(folder / "images" / f"t{number}.jpg", quality=95)
        Image.fromarray(tumor).save(folder / "masks" / f"t{number}.png")
        rows.append(f"t{number},{number % 2}")
    (folder / "index.csv").write_text("\n".join(rows) + "\n")
    return folder
