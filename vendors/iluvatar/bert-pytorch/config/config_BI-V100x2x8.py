from config_common import *

max_steps = 20000 // gradient_accumulation_steps
lr_decay = 20000
