"""The sums that the agent stores over the records of a rank: the seconds before evaluations, and before all others."""

from typing import Any

from flagperf_driver import events
from flagperf_driver.node.agent.milestones import Milestones, Moment

READS_S = 0.2


def moment(at: float) -> Moment:
    return Moment(at, round(1000 * at))


def seen(*records: tuple[str, float], off_s: float = 0.0, every_record: bool = True) -> dict[str, Any]:
    """Return what the agent stores of these records, each with the time at which it was written."""
    milestones = Milestones(every_record)
    for event, at in records:
        milestones.read_completely(moment(at - READS_S / 2))
        milestones.add(event, moment(at + READS_S / 2), round(1000 * (at + off_s)))
    return milestones.to_json()


TRAINING = (
    (events.INIT_END, 5.0), (events.TRAIN_START, 10.0), (events.STEP_BEGIN, 11.0), (events.STEP_END, 14.0),
    (events.EVALUATE, 16.0), (events.STEP_END, 19.0), (events.EVALUATE, 19.05), (events.TRAIN_END, 20.0),
    (events.FINISHED, 30.0),
)  # fmt: skip


def test_the_seconds_before_each_record_are_added_and_a_time_without_its_record_is_off() -> None:
    stored = seen(*TRAINING)
    # Of steps 1 s, 3 s, 3 s and 0.95 s, each known to two reads; of evaluations 2 s and 0.05 s, which may be nothing.
    assert stored["steps"] == [7.15, 8.75]
    assert stored["evaluations"] == [1.8, 2.45]
    assert seen(*TRAINING, off_s=0.1)["off_s"] == 0
    assert seen(*TRAINING, off_s=-2.0)["off_s"] == 1.9
    assert seen(*TRAINING, off_s=3.0)["off_s"] == 2.9
    assert set(seen(*TRAINING, every_record=False)) == {"started", *(event for event, _ in TRAINING)} - {
        events.STEP_BEGIN, events.STEP_END, events.EVALUATE,
    }  # fmt: skip
