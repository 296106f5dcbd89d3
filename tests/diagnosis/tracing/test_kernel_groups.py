"""Groups of kernels, and the file that DLProf had of them."""

import json

import pytest

from voxelocity.core.errors import OutputError
from voxelocity.diagnosis.facts import KernelGroup
from voxelocity.diagnosis.tracing.kernel_groups import kernel_groups, write_kernels
from voxelocity.diagnosis.tracing.reading import Call, DeviceWork

PRODUCT, OTHER = "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_tn", "void at::native::elementwise_kernel<128, 4>"


def test_kernels_of_one_cuda_graph_share_its_launch():
    device = [
        DeviceWork("kernel", PRODUCT, (200, 300), 5, -1),
        DeviceWork("kernel", OTHER, (300, 400), 5, -1),
        DeviceWork("kernel", OTHER, (400, 500), 5, -1),
        DeviceWork("copy", "Memcpy HtoD (Pageable -> Device)", (500, 550), 6, -1),
    ]
    assert kernel_groups(device, {5: Call("cudaGraphLaunch", (100, 130), "1/1")}) == {
        "All kernels": KernelGroup(number=4, cpu_ns=30, gpu_ns=350),
        "Tensor-core kernels": KernelGroup(number=1, cpu_ns=10, gpu_ns=100),
        "Memory copies": KernelGroup(number=1, cpu_ns=0, gpu_ns=50),
        "All other kernels": KernelGroup(number=2, cpu_ns=20, gpu_ns=200),
    }


def test_groups_are_written_as_dlprof_wrote_them(tmp_path):
    device = [DeviceWork("kernel", PRODUCT, (0, 300), 1, -1)]
    path = write_kernels(kernel_groups(device, {}), tmp_path / "kernels.json")
    groups = json.loads(path.read_text())
    assert list(groups) == ["All kernels", "Tensor-core kernels", "Memory copies", "All other kernels"]
    assert groups["Tensor-core kernels"] == {"number": 1, "cpu_ns": 0, "gpu_ns": 300}


def test_groups_that_cannot_be_written_are_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write '.*kernels\.json'"):
        write_kernels(kernel_groups([], {}), tmp_path / "file" / "kernels.json")
