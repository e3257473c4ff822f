# As in FlagPerf, without its XDNN_CONV_GEMM_DTYPE=int16: convolutions in int16 are not the fp32 that the config says.
export BKCL_TIMEOUT=1800
export XMLIR_D_XPU_L3_SIZE=66060288
