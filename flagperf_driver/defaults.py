"""What every training can be told, and the value when nobody says otherwise: the config's lowest layer.

A suite's ``_base.py`` overrides these, a vendor's file may override what ``MUTABLE`` and the suite's
``mutable_params.py`` name. Each comment is the option's manual.
"""

from __future__ import annotations

from typing import Literal

# -- where things are; the harness sets the first two ------------------------------------------------------
vendor = ""
data_dir = ""
train_data: str | None = None  # relative to data_dir
eval_data: str | None = None  # relative to data_dir
init_checkpoint: str | None = None  # relative to data_dir; weights to start from

# -- how much is trained ---------------------------------------------------------------------------------
train_batch_size = 1  # samples per card and micro-step
eval_batch_size = 1  # samples per card and evaluation step
samples_per_item = 1  # the most samples that an item of a batch counts as, e.g. the answers of one question
gradient_accumulation_steps = 1  # micro-steps per optimizer step
max_steps: int | None = None  # optimizer steps
max_epochs: int | None = None
max_samples: int | None = None  # over all cards
parity_samples: int | None = None  # train only so many, to be judged by the reference's loss curve, not the target
max_time_s: float | None = None  # the training ends in good order at this age
expected_time_s: float | None = None  # how long a round takes, as measured or published: --plan prints it
seed = 42  # round i trains with seed + i - 1

# -- how it is trained -----------------------------------------------------------------------------------
optimizer: Literal["sgd", "adam", "adamw", "lamb"] = "adamw"
learning_rate = 1e-3
weight_decay = 0.0
momentum = 0.9  # sgd
beta1 = 0.9  # adam, adamw, lamb
beta2 = 0.999
epsilon = 1e-8
max_grad_norm: float | None = None  # clip the gradients' norm to this
lr_schedule: Literal["constant", "linear", "cosine", "step"] = "constant"  # after a linear warm-up
lr_warmup_steps = 0
lr_decay_steps: int | None = None  # where linear and cosine end; None: at max_steps
lr_step_steps: int | None = None  # step: multiply by lr_gamma after each so many steps
lr_gamma = 0.1

# -- how fast it may go ----------------------------------------------------------------------------------
precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"  # autocast's type; fp16 has a loss scaler
compile = False  # noqa: A001 - torch.compile
channels_last = False
fused_optimizer = True  # where the device has one
parallel: Literal["ddp", "fsdp"] = "ddp"
cudnn_benchmark = True
cudnn_deterministic = False
num_workers = 0  # loader processes per rank
checkpoint_activations = False  # trade compute for memory

# -- when it looks up ------------------------------------------------------------------------------------
log_freq = 10  # steps between two STEP_END lines
eval_steps: int | None = None  # steps between two evaluations; None: after each epoch
eval_start_steps = 0  # no evaluation before this step
eval_samples: int | None = None  # evaluate at least once in this many samples over all cards; only a suite sets this
eval_at_start = True  # evaluate the untrained model: did it learn at all?
checkpoint_steps: int | None = None  # steps between two checkpoints; None: no checkpoint
checkpoint_dir: str | None = None  # where they lie; a training found there is continued

# -- what is measured ------------------------------------------------------------------------------------
throughput_only = False  # this shape is for throughput: bounded steps, no convergence asked
throughput_steps = 50  # steps measured then, after the warm-up
timing_warmup_steps = 5  # steps left out of p_core and the step times
scaling: Literal["weak", "strong"] = "weak"  # weak: equal batch per card; strong: equal batch over all cards
min_efficiency: float | None = None  # least acceptable speed-up per card; None: what the vendor says

# -- how long one waits ----------------------------------------------------------------------------------
init_timeout_s = 1800.0  # from a rank's start to its first step
hang_timeout_s = 300.0  # without progress, once it trains
round_timeout_s: float | None = None  # for the whole round

# -- faults on request, for the controls that must fail ------------------------------------------------------
shuffle_labels = False  # train on labels that belong to other samples

MUTABLE = [
    "beta1", "beta2", "channels_last", "checkpoint_activations", "checkpoint_dir", "checkpoint_steps",
    "compile", "cudnn_benchmark", "cudnn_deterministic", "data_dir", "epsilon", "eval_batch_size",
    "eval_start_steps", "eval_steps", "expected_time_s",
    "fused_optimizer", "gradient_accumulation_steps", "hang_timeout_s", "init_timeout_s",
    "learning_rate", "log_freq", "lr_decay_steps", "lr_gamma", "lr_step_steps", "lr_warmup_steps",
    "max_epochs", "max_samples", "max_steps", "max_time_s", "min_efficiency", "momentum", "num_workers",
    "parallel", "parity_samples", "precision", "round_timeout_s", "scaling", "seed", "shuffle_labels",
    "throughput_only", "throughput_steps", "timing_warmup_steps", "train_batch_size", "vendor", "weight_decay",
]  # fmt: skip
"""What a vendor's file and ``--set`` may override in every suite."""
