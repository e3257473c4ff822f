"""The small mixture, trained in the round for half as long as its training, and served without compilation."""

case_settings = ["max_steps=120"]
precision = "fp32"
engine_options = ["--enforce-eager"]  # the compilation takes longer than the measurement
concurrencies = [1, 2, 4, 8]
prompt_tokens = 64
answer_tokens = 32
point_least_s = 2.0
point_most_s = 6.0
expected_time_s = 120.0
