"""cuCIM's transforms through MONAI's wrappers' names, with the arguments of the guide, without cuCIM."""

import numpy as np

from voxelocity.monai import CuCIM, RandCuCIM

image = np.random.default_rng(0).integers(0, 256, (3, 96, 96), dtype=np.uint8)
scaled = CuCIM(name="scale_intensity_range", a_min=0.0, a_max=255.0, b_min=-1.0, b_max=1.0)(image.astype(np.float32))
assert -1.0 <= scaled.min() < -0.9
assert 0.9 < scaled.max() <= 1.0
jitter = RandCuCIM(name="color_jitter", brightness=64.0 / 255.0, contrast=0.75, saturation=0.25, hue=0.04)
jittered = jitter(image)
assert jittered.shape == image.shape
assert not np.array_equal(jittered, image)
