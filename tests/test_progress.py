"""Notes of what happens in a run and who gets them, and the errors that users can fix."""

import pickle
import threading

import pytest

from pytest_flagperf import progress
from pytest_flagperf.problems import MissingHosts
from pytest_flagperf.progress import has_subscriber, note, subscribed


def test_a_note_reaches_those_who_subscribe_to_its_kind_until_the_end_of_the_block() -> None:
    lines: list[str] = []
    with subscribed({"line": lambda text: lines.append(text)}, {"phase_end": lambda: lines.append("over")}):
        assert has_subscriber("line")
        assert not has_subscriber("log")
        thread = threading.Thread(target=lambda: note("line", text="of a thread"))
        thread.start()
        thread.join()
        with subscribed():
            note("line", text="to no subscriber")
        note("phase_end")
    note("line", text="too late")
    assert lines == ["of a thread", "over"]


def test_subscribers_get_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "TICK_S", 0.001)
    ticked = threading.Event()
    with subscribed({"tick": ticked.set}):
        assert ticked.wait(60)


def test_an_error_reaches_another_process_with_its_sentences() -> None:
    error = pickle.loads(pickle.dumps(MissingHosts(["h1 is lost", "h2 is lost"])))
    assert type(error) is MissingHosts
    assert (str(error), error.problems) == ("h1 is lost\nh2 is lost", ["h1 is lost", "h2 is lost"])
