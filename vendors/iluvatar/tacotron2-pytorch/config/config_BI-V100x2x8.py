from config_common import *
