from __future__ import annotations

import json

import pytest

from voxelocity_observe.core.errors import OutputError
from voxelocity_observe.diagnose.facts import KernelGroup
from voxelocity_observe.diagnose.tracing.kernels import kernel_groups, uses_tensor_cores, write_kernels
from voxelocity_observe.diagnose.tracing.reading import DeviceWork, LaunchCall


@pytest.mark.parametrize(
    "kernel",
    [
        "volta_fp16_s884cudnn_fp16_256x128_ldg8_relu_f2f_exp_small_nhwc_tn_v1",
        "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn",
        "turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_nn",
        "sm80_xmma_fprop_implicit_gemm_indexed_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage4_tensor16x8x16",
        "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16_256x64_32x4_nn_align8>(Params)",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off",
        "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT",
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4>>(params)",
    ],
)
def test_kernels_of_tensor_cores_are_known_by_their_names(kernel):
    assert uses_tensor_cores(kernel)


@pytest.mark.parametrize(
    "kernel",
    [
        "ampere_sgemm_128x64_tn",
        "sm86_xmma_fprop_implicit_gemm_indexed_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize64x32x8_stage3_ffma_aligna4",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_ffma_execute_kernel",
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(Params)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int, float)",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>",
        "triton_poi_fused_relu_0",
    ],
)
def test_other_kernels_are_not(kernel):
    assert not uses_tensor_cores(kernel)


PRODUCT, OTHER = "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_tn", "void at::native::elementwise_kernel<128, 4>"


def test_kernels_of_one_cuda_graph_share_its_launch():
    device = [
        DeviceWork("kernel", PRODUCT, (200, 300), 5, -1),
        DeviceWork("kernel", OTHER, (300, 400), 5, -1),
        DeviceWork("kernel", OTHER, (400, 500), 5, -1),
        DeviceWork("copy", "Memcpy HtoD (Pageable -> Device)", (500, 550), 6, -1),
    ]
    assert kernel_groups(device, {5: LaunchCall("cudaGraphLaunch", (100, 130), "1/1")}) == {
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
    ours = {"number": 1, "cpu_ns": 0, "gpu_ns": 300}
    assert groups["Tensor-core kernels"] == {**ours, "# Kernels": 1, "CPU Time (ns)": 0, "GPU Time (ns)": 300}


def test_groups_that_cannot_be_written_are_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write '.*kernels\.json'"):
        write_kernels(kernel_groups([], {}), tmp_path / "file" / "kernels.json")
