from config_common import *

max_steps = 240000 // gradient_accumulation_steps
lr_decay = 240000
