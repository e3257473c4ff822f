# As in FlagPerf: collectives in a tree, which needs an even number of hosts.
export BKCL_TIMEOUT=1800
export BKCL_SOCKET_FORCE_TREE=1
export XMLIR_D_XPU_L3_SIZE=66060288
export XACC=1
export XACC_ARGS="-L O0"
