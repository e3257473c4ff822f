"""A pytest plugin: a machine that nothing else uses, for runs whose verdicts must not depend on what this one does.

A toy trains for a moment and reports its own speed. ``test_busy.py`` and ``test_trainings.py`` test the warning of a
busy machine.
"""

import math

from pytest_flagperf.results.measured import busy

busy.LEAST_S = math.inf
