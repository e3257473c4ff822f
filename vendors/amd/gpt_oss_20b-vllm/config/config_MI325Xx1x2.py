"""vLLM's own choices. Not yet run."""

from config_common import *
