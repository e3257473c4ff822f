"""A pytest plugin: a machine that nothing else uses, for runs whose verdicts must not depend on what this one does.

A toy trains for a moment and says itself how fast it was. What is marked busy is left to ``test_busy.py``,
``test_trainings.py`` and ``lab/test_marks.py``, on the real machine.
"""

import math

from pytest_flagperf.results import busy

busy.LEAST_S = math.inf
