"""The account of the settings: its storage and its jobs."""

from __future__ import annotations

from pytest_flagperf.hosts import HostError
from pytest_flagperf.problems import Problems

from .cloud_job import Cloud
from .config import ModelArtsConfig
from .jobs import find_project, open_jobs
from .keys import Keys
from .names import use_addresses
from .obs import Obs
from .rest import Rest


def open_cloud(config: ModelArtsConfig) -> Cloud:
    """Return the account's storage and jobs; Problems if the keys or the project are missing."""
    use_addresses(config.addresses)
    keys = config.read_keys()
    project = config.project or _project(config, keys)
    rest = Rest("ModelArts", config.endpoint("modelarts"), keys, config.ca, project)
    return Cloud(config, Obs(config, keys), open_jobs(config, rest))


def _project(config: ModelArtsConfig, keys: Keys) -> str:
    try:
        return find_project(config, Rest("IAM", config.endpoint("iam"), keys, config.ca))
    except HostError as error:
        raise Problems([str(error)]) from error
