"""A process that may not allocate what a prediction needs continues with a file, and predicts the same."""

from shared.forked import run_python

_SCRIPT = """
import os, re, resource, sys
from pathlib import Path
os.chdir(sys.argv[1])
import torch
from voxelocity.infer import WindowConfig
from voxelocity.infer.sinks import ClassMap
from voxelocity.infer.window import stitch_volumes
torch.set_num_threads(1)
torch.manual_seed(0)
network, image = torch.nn.Conv3d(1, 96, 1), torch.randn(1, 64, 80, 80)
def predict(warn):
    sink, config = ClassMap((64, 80, 80)), WindowConfig(shape_voxel=(32, 32, 32))
    for stitched in stitch_volumes(network, [(image, sink)], config, device=torch.device("cpu"), folder=Path("."),
                                   warn=warn):
        stitched.check()
    return sink.result()
expected = predict(print)
used = 1024 * int(re.search(r"VmData:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
# The scores take 65 MB, the rest much less.
resource.setrlimit(resource.RLIMIT_DATA, (used + (57 << 20),) * 2)
messages = []
found = predict(messages.append)
print(len(messages), messages[0].split("; ")[1], torch.equal(found, expected))
"""


def test_a_real_limit_of_memory_moves_the_scores_to_a_file(tmp_path):
    ended = run_python(_SCRIPT, [tmp_path])
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout == "1 they are kept in a file in ., which is slower True\n"
    assert list(tmp_path.iterdir()) == []
