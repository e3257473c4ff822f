# As in FlagPerf, without XACC_ARGS="-L amp": the config sets fp32, not mixed precision.
export XACC=1
export XMLIR_D_XPU_L3_SIZE=66060288
