# As in FlagPerf.
export XACC=1
export XACC_ARGS="-L O0 -Lamp"
