VLLM_CPU_KVCACHE_SPACE=1 # GiB; the default is half of the memory
