"""The pytest plugin: hooks and fixtures that call the rest of the package."""

# ruff: noqa: F401 - pytest takes every name of this module

from . import bytecode  # imported first: it changes how the modules below are loaded
from .fixtures import (
    case,
    cluster,
    container,
    flagperf_run,
    gates,
    judge,
    measurements,
    monitors,
    plan,
    plugin_verdicts,
    promised,
    round_number,
    scaling,
    selected,
    siblings,
    training,
    trainings,
)
from .items import (
    pytest_collection,
    pytest_collection_modifyitems,
    pytest_generate_tests,
    pytest_pycollect_makeitem,
    pytest_pycollect_makemodule,
)
from .parallel import (
    pytest_configure_node,
    pytest_handlecrashitem,
    pytest_xdist_make_scheduler,
    pytest_xdist_node_collection_finished,
)
from .reports import pytest_runtest_makereport
from .session import (
    pytest_addoption,
    pytest_configure,
    pytest_load_initial_conftests,
    pytest_runtestloop,
    pytest_sessionfinish,
    pytest_unconfigure,
)
from .terminal import pytest_report_collectionfinish, pytest_sessionstart, pytest_terminal_summary
