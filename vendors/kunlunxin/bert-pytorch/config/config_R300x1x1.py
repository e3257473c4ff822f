from config_common import *

gradient_accumulation_steps = 56
max_steps = 240000 // gradient_accumulation_steps
lr_decay = 240000
eval_steps = 2000 // gradient_accumulation_steps
