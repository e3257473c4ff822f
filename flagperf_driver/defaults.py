"""The config keys that every framework has, with their default values: the config's lowest layer.

A suite's ``_base.py`` overrides these values. A vendor's file may override the keys in ``MUTABLE`` and in the suite's
``mutable_params.py``. The comments document the keys. ``<framework>/defaults.py`` beside this file has the
keys that one framework has.
"""

from __future__ import annotations

from typing import Literal

# -- paths; the harness sets the first two -----------------------------------------------------------------
vendor = ""  # the vendor of the accelerators, as --vendor
data_dir = ""  # the folder of the training data, as --data-dir
train_data: str | None = None  # relative to data_dir
eval_data: str | None = None  # relative to data_dir
init_checkpoint: str | None = None  # relative to data_dir; weights to start from

# -- amount of training ----------------------------------------------------------------------------------
train_batch_size = 1  # samples per device and micro-step
eval_batch_size = 1  # samples per device and evaluation step
samples_per_item = 1  # maximum number of samples in one item of a batch, e.g. the answers to one question
gradient_accumulation_steps = 1  # micro-steps per optimizer step
max_steps: int | None = None  # optimizer steps
max_epochs: int | None = None  # passes over the training data
max_samples: int | None = None  # over all devices
parity_samples: int | None = None  # train only so many; judged by the reference's loss curve, not by the target
stop_at_target = True  # False: train on to max_steps, to measure how far above its target a suite ends
max_time_s: float | None = None  # stop after so many seconds of training, also before --resume; keep the results
expected_time_s: float | None = None  # measured or published time of a round; --plan prints it
seed = 42  # round i trains with seed + i - 1

# -- optimizer -------------------------------------------------------------------------------------------
optimizer: Literal["sgd", "adam", "adamw", "lamb"] = "adamw"  # the rule that updates the parameters
learning_rate = 1e-3  # after the warm-up; lr_schedule changes it
weight_decay = 0.0  # share of the parameters' values that each step removes
decay_vectors = False  # True: weight decay also applies to biases and norms (one-dimensional)
no_decay: list[str] = []  # parts of parameters' names without weight decay, beside the vectors
momentum = 0.9  # sgd
beta1 = 0.9  # adam, adamw, lamb
beta2 = 0.999  # adam, adamw, lamb
epsilon = 1e-8  # adam, adamw, lamb
max_grad_norm: float | None = None  # clip the norm of the gradients to this value
lr_schedule: Literal["constant", "linear", "cosine", "step", "milestones", "inverse_sqrt"] = "constant"
"""The course of the learning rate after the warm-up."""
lr_unit: Literal["steps", "epochs"] = "steps"  # unit of lr_warmup, lr_decay, lr_step and lr_milestones
lr_warmup: float = 0  # length of the linear warm-up
lr_warmup_unit: Literal["steps", "epochs"] | None = None  # None: lr_unit
lr_warmup_from = 0.0  # share of learning_rate at the begin of the warm-up
lr_decay: float | None = None  # end of linear and cosine; None: max_steps, or else max_epochs
lr_floor = 0.0  # lowest share of learning_rate; linear and cosine end there
lr_step: float | None = None  # step: multiply by lr_gamma at the end of each such length
lr_gamma = 0.1  # factor of lr_step
lr_milestones: list[list[float]] | None = None  # milestones: [[when, share of learning_rate from then on], ...]

# -- performance -----------------------------------------------------------------------------------------
precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"  # autocast's data type; fp16 uses a loss scaler
num_workers = 0  # loader processes per rank
checkpoint_activations = False  # trade compute for memory

# -- logging, evaluation and checkpoints ------------------------------------------------------------------
log_freq = 10  # steps between two STEP_END lines
eval_steps: int | None = None  # steps between two evaluations; None: after each epoch
eval_start_steps = 0  # no evaluation before this step
eval_samples: int | None = None  # evaluate at least every so many samples over all devices; only a suite sets this
eval_at_start = True  # evaluate the untrained model
checkpoint_steps: int | None = None  # steps between two checkpoints; None: no checkpoint
failure_interval_s: float | None = None  # mean time between failures: sets the checkpoints without checkpoint_steps
checkpoint_dir: str | None = None  # folder of the checkpoints; --resume continues a training from its own one there
replica_check_steps: int | None = None  # steps between two checks of all weights; None: copies only, at drawn steps

# -- measurement -----------------------------------------------------------------------------------------
throughput_only = False  # measure throughput only: few steps, no target
throughput_steps = 50  # measured steps of such a training, after the warm-up
timing_warmup_steps = 5  # steps left out of p_core and the step times
profile_steps = 10  # steps that a throughput training profiles after the measured ones; 0: no profile
scaling: Literal["weak", "strong"] = "weak"  # weak: same batch per device; strong: same batch over all devices
min_efficiency: float | None = None  # minimum speed-up per device; None: 0.8, or 0.55 for cores of a CPU

# -- timeouts --------------------------------------------------------------------------------------------
init_timeout_s = 1800.0  # from a rank's start to its first step
hang_timeout_s = 300.0  # without progress, after the first step
round_timeout_s: float | None = None  # for the whole round

# -- deliberate faults, for trainings that must fail ---------------------------------------------------------
shuffle_labels = False  # train with labels of other samples

MUTABLE = [
    "beta1", "beta2", "checkpoint_activations", "checkpoint_dir", "checkpoint_steps",
    "data_dir", "epsilon", "eval_batch_size",
    "eval_start_steps", "eval_steps", "expected_time_s",
    "failure_interval_s", "gradient_accumulation_steps", "hang_timeout_s", "init_timeout_s",
    "learning_rate", "log_freq", "lr_decay", "lr_floor", "lr_gamma", "lr_milestones", "lr_step", "lr_unit", "lr_warmup",
    "lr_warmup_from", "lr_warmup_unit",
    "max_epochs", "max_samples", "max_steps", "max_time_s", "min_efficiency", "momentum", "num_workers",
    "parity_samples", "precision", "profile_steps", "replica_check_steps", "round_timeout_s", "scaling", "seed",
    "shuffle_labels", "stop_at_target",
    "throughput_only", "throughput_steps", "timing_warmup_steps", "train_batch_size", "vendor", "weight_decay",
]  # fmt: skip
"""Keys that a vendor's file and ``--set`` may override in every suite."""
