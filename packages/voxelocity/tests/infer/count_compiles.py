"""Prints how often each kernel is compiled for windows, parts and tiles of many sizes; run by `test_kernels.py`.

Launches go through Triton's own path for sm_90, with a driver that names a device and no device: nothing is run.
"""

import collections
import json

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from voxelocity.core.region import Region
from voxelocity.data.prepare import Restoration, resize_record
from voxelocity.infer import arrays
from voxelocity.infer.device_restore import DeviceRestoration
from voxelocity.infer.mirrored import Mirrored, add_weighted, part_of
from voxelocity.infer.sinks import ClassMap


class Driver:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=0):
        return 0


driver.set_active(Driver())
JITFunction.__getitem__ = lambda self, grid: lambda *args, **options: self.run(*args, grid=grid, warmup=True, **options)
compiled = collections.Counter()
triton.knobs.runtime.jit_post_compile_hook = lambda **about: compiled.update([about["fn"].name.rsplit(".", 1)[-1]])
arrays._KERNEL_DEVICES = frozenset(("cpu",))

for layout in (torch.contiguous_format, torch.channels_last_3d):
    for side in (32, 48):
        weights = torch.rand(side, side, side)
        logits = torch.zeros((2, 3, side, side, side), dtype=torch.bfloat16).contiguous(memory_format=layout)
        for low in (0, 3, 16):
            total, box = torch.zeros((3, side, 50, 70)), Region((low, 0, 2), (side, side - low, side))
            part = total[:, low:, 1 : 1 + side - low, 7 : 5 + side]
            arrays.add_weighted(part, logits[0][:, *box.slices], weights[box.slices])
            pair = Mirrored(logits[0], logits[1], (0,), torch.arange(3), 0.5)
            add_weighted(part, part_of(pair, box), weights[box.slices])
        arrays.is_finite(total[:, 1:])
        ClassMap((side, 60, 90)).take(total[:, :, 3:40, 5:9], None, Region((0, 2, 3), (side, 39, 7)))
for x, y, z in ((12, 20, 30), (13, 17, 31)):
    restoration = Restoration([resize_record((x * 2, y, z * 2), (x, y, z))], (x, y, z))
    on_device = DeviceRestoration(restoration, torch.device("cpu"), is_softmax=True, region_order=())
    sums = torch.zeros((5, x, y, z))
    for start in (0, 3):
        on_device.add(sums[:, start:], torch.ones(x, y, z)[start:], start=(start, 0, 0))
print(json.dumps(compiled))
