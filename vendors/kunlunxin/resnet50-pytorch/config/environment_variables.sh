# As in FlagPerf, without XDNN_CONV_GEMM_DTYPE=int16: the config sets fp32, not convolutions in int16.
export BKCL_TIMEOUT=1800
export XMLIR_D_XPU_L3_SIZE=66060288
