"""The small mixture, trained in the round for half as long as its training, and served without compilation."""

case_settings = ["max_steps=120"]
accuracy_set = ""
accuracy_temperature = 0.0
precision = "fp32"
engine_options = ["--enforce-eager"]  # the compilation takes longer than the measurement
concurrencies = [1, 2, 4, 8]
prompt_tokens = 64
answer_tokens = 32
point_least_s = 2.0
point_most_s = 6.0
init_timeout_s = 1800.0
hang_timeout_s = 300.0
event_timeout_s = 60.0
expected_time_s = 120.0  # measured on a shared core, most of it the start of the server
