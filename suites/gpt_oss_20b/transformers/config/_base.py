"""The small mixture of gpt_oss_20b:pytorch, trained in the round for half as long, and served."""

weights_of = "gpt_oss_20b:pytorch"
case_settings = ["max_steps=120"]

# Below MLPerf's limits, which a model of this size keeps until its queue grows for a minute.
server_ttft_s = 0.2
server_tpot_s = 0.05
interactive_ttft_s = 0.05
interactive_tpot_s = 0.015
rate_most_s = 20.0

expected_time_s = 90.0  # measured on a shared core
