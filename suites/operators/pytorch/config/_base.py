"""The operators of a training's step; flagperf_driver/measuring/defaults.py has all other keys."""

shapes_of = "bert:pytorch"  # the training, with or without the shape of its case: llama31_8b:pytorch:1x8
case_settings: list[str] = []  # settings of the training, as in ["train_batch_size=4"]
case_config: dict[str, object] = {}  # the training's config, which the harness sets
warmup_steps = 5  # of the training, before its operators are recorded
compare_s = 20.0  # how long steps and their operators are measured in turn
compiled = True  # measure the step of the compiled training, too
hang_timeout_s = 900.0  # to compile a training takes minutes
point_warmup_s = 0.1
point_least_s = 0.3
point_most_s = 1.0
