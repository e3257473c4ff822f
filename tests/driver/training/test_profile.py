"""The record of a profile: kinds of kernels by their names, times that overlap, calls of a step."""

import pytest

from flagperf_driver.training.profile import KERNELS, Activity, Recording, backend_of, kind_of, record

US = 1000
NAMES = [
    ("matrix product", "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNN"),
    ("matrix product", "triton_tem_fused_addmm_gelu_1"),
    ("fp32 matrix product", "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_nt_align4>(Params)"),
    ("fp32 matrix product", "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4"),
    ("fp32 matrix product", "ampere_sgemm_128x64_nn"),
    ("matrix product", "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn"),
    ("attention", "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 64>>(Params)"),
    ("attention", "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<bf16>)"),
    ("attention", "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1"),
    ("attention", "void cudnn::fusion::compute_dot_do_o<true, __nv_bfloat16, __nv_bfloat16, 64>(Params)"),
    ("attention", "void cudnn::fusion::convert_dq_to_16bits<__nv_bfloat16, 64>(Params)"),
    ("attention", "triton_per_fused__safe_softmax_native_dropout_12"),
    ("attention", "triton_red_fused__softmax_backward_data_mul_3"),
    ("attention", "triton_tem_fused_flex_attention_0"),
    ("attention", "void (anonymous namespace)::softmax_warp_forward<BFloat16, BFloat16, float, 9, false, false>()"),
    ("reduction", "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, true, false>(float*)"),
    ("reduction", "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, LogSoftMaxForwardEpilogue>()"),
    ("reduction", "triton_red_fused__log_softmax_nll_loss_forward_4"),
    ("reduction", "triton_per_fused_prepare_softmax_online_1"),
    ("reduction", "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>"),
    ("convolution", "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64"),
    ("convolution", "void conv2d_c1_k1_nhwc_kernel<__nv_bfloat16>(Params)"),
    ("convolution", "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3>()"),
    ("other", "void convert_to_16bits<__nv_bfloat16>(Params)"),
    ("pointwise", "triton_poi_fused_convolution_relu_7"),
    ("layout copy", "void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16, float>()"),
    ("layout copy", "triton_poi_fused_clone_transpose_14"),
    ("layout copy", "void at::native::elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda(Iterator&)>(int)"),
    ("layout copy", "Memcpy DtoD (Device -> Device)"),
    ("host copy", "Memcpy HtoD (Pinned -> Device)"),
    ("normalization", "triton_red_fused_native_layer_norm_native_layer_norm_backward_2"),
    ("normalization", "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)"),
    ("normalization", "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1, true>()"),
    ("pointwise", "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(Iterator&)>(int)"),
    ("pointwise", "Memset (Device)"),
    ("optimizer", "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>"),
    ("optimizer", "aten::_fused_adamw_"),
    ("collective", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
    ("collective", "gloo:all_reduce"),
    ("all-to-all", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"),
    ("all-to-all", "gloo:all_to_all"),
    ("matrix product", "aten::_grouped_mm"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_a_kernels_name_gives_its_kind(kind: str, name: str) -> None:
    assert kind_of(name) == kind


def test_the_backend_of_attention_follows_from_its_kernel() -> None:
    of_attention = [name for kind, name in NAMES if kind == "attention"]
    backends = ["flash", "efficient", "cudnn", "cudnn", "cudnn", "math", "math", "flex", "math"]
    assert [backend_of(name) for name in of_attention] == backends


def test_a_record_is_of_one_step_and_counts_overlapping_time_once() -> None:
    copy = "Memcpy HtoD (Pinned -> Device)"
    activities = [
        Activity("gemm", 0, 10 * US, 10 * US),
        Activity(copy, 5 * US, 25 * US, 20 * US, 4096),
        Activity("triton_poi_fused_add_0", 30 * US, 40 * US, 10 * US),
        Activity("gemm", 40 * US, 60 * US, 20 * US),
        Activity("fmha", 60 * US, 62 * US, 2 * US),
    ]
    got = record(Recording(activities, launches=8, waits=[3 * US], graph_breaks=1), 2)
    assert got["busy_time"] == pytest.approx(57e-6 / 2), "from 0 to 25 and from 30 to 62"
    assert got["exposed"] == {"host copy": pytest.approx(15e-6 / 2)}, "beside the first matrix product"
    assert list(got["kinds"]) == ["matrix product", "host copy", "pointwise", "attention"]
    assert got["kinds"]["matrix product"] == pytest.approx(15e-6)
    assert got["attention"] == {"efficient": pytest.approx(1e-6)}
    first = got["kernels"][0]
    assert (first["name"], first["calls"], first["time"]) == ("gemm", 1.0, pytest.approx(15e-6))
    assert (got["calls"], got["launches"], got["waits"], got["graph_breaks"]) == (2.5, 4.0, 0.5, 1)
    assert got["host_bytes"] == 2048
    many = record(Recording([Activity(f"kernel {at}", at, at + 1, 1) for at in range(99)]), 1)
    assert len(many["kernels"]) == KERNELS
    long = record(Recording([Activity("void at::native::" + "a" * 500, 0, 1, 1)]), 1)["kernels"][0]["name"]
    assert long == "a" * 117 + "..."
