from config_common import *

max_steps = 30000 // gradient_accumulation_steps
lr_decay = 30000
