# As in FlagPerf.
export XACC_ENABLE=1
export XACC_ARGS="-L O0"
