from config_common import *

throughput_only = True
