"""Names of real kernels, and whether they compute on tensor cores."""

import pytest

from voxelocity.diagnosis.tracing.tensor_cores import uses_tensor_cores


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
