"""The errors that users can fix."""

import pickle

from pytest_flagperf.problems import MissingHosts


def test_an_error_reaches_another_process_with_its_sentences() -> None:
    error = pickle.loads(pickle.dumps(MissingHosts(["h1 is lost", "h2 is lost"])))
    assert type(error) is MissingHosts
    assert (str(error), error.problems) == ("h1 is lost\nh2 is lost", ["h1 is lost", "h2 is lost"])
