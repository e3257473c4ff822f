"""A comparison judges as a baseline does."""

import random

import pytest

from pytest_flagperf.results.comparing import baselines
from pytest_flagperf.results.figures import noise
from pytest_flagperf_compare.comparison import CaseRuns
from tests.results.comparing.test_baselines import ACCEPTED, case_of, p_core, rounds


@pytest.mark.parametrize("earlier_runs", [0, 8])
def test_a_baseline_and_a_comparison_of_the_same_runs_give_the_same_answer(earlier_runs: int) -> None:
    rng = random.Random(37)
    words = []
    for _ in range(60):
        slower = rng.uniform(0.8, 1.0)
        earlier = [rounds(*(rng.gauss(1, 0.03) for _ in range(3))) for _ in range(earlier_runs)]
        old, new = (rounds(*(level * rng.gauss(1, 0.03) for _ in range(3))) for level in (1.0, slower))
        baseline = baselines.accept(case_of(old), earlier, ACCEPTED)
        row = CaseRuns(("old", "new"), case_of(old), case_of(new))
        (compared,) = [one for one in row.changes(like=[*earlier, old]) if one.name == "p_core"]
        verdict = p_core(new, baseline)
        assert (verdict.ok, compared.word == noise.WORSE) in ((True, False), (False, True)), verdict.sentence
        assert compared.judgement.rule(baselines.BOUND) in verdict.sentence
        words.append(compared.judgement.word)
    assert set(words) >= {noise.WORSE, noise.WITHIN}
