# As in FlagPerf: the collectives' library over PCIe, and in a tree, which wants an even number of hosts.
export BKCL_PCIE_RING=1
export BKCL_TIMEOUT=1800
export BKCL_SOCKET_FORCE_TREE=1
export XMLIR_D_XPU_L3_SIZE=66060288
export XACC=1
export XACC_ARGS="-L O0"
