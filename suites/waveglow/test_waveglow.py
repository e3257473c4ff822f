from pytest_flagperf.benchmark import TrainingBenchmark


class TestWaveglow(TrainingBenchmark):
    pass
