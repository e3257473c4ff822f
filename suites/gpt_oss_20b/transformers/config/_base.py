"""gpt-oss-20b with the weights of the data directory."""

weights_of = "gpt_oss_20b:pytorch"
precision = "bf16"
concurrencies = [1, 4, 16, 64]
prompt_tokens = 1024
answer_tokens = 256
point_least_s = 20.0
point_most_s = 60.0

# -- published weights, judged by the questions of MLPerf Inference v6.1 for gpt-oss-120b (../README.md) ------------
accuracy_set = "questions"
accuracy_answer_tokens = 32768
accuracy_temperature = 1.0
# OpenAI's own, with the reasoning effort high and without tools: the model card, arXiv 2508.10925.
accuracy_reference = {"aime25": 91.7, "gpqa_diamond": 71.5}
# The whole set is one point, in which the ranks do not report.
init_timeout_s = 86400.0
hang_timeout_s = 86400.0
event_timeout_s = 3600.0  # a request may wait for the cache of others, which are long
