from config_common import *

gradient_accumulation_steps = 4
max_steps = 30000 // gradient_accumulation_steps
lr_decay = 30000
eval_steps = 2000 // gradient_accumulation_steps
