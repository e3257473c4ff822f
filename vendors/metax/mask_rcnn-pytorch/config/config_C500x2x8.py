from config_common import *

learning_rate = 0.016
