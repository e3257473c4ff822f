# As in FlagPerf, without XDNN_CONV_GEMM_DTYPE=int16: the config sets fp32, not convolutions in int16.
export XACC_ENABLE=1
export XMLIR_D_XPU_L3_SIZE=66060288
export XACC_INSTALL_RUNTIME_HOOKER=4
export XACC_ARGS="-L O0"
