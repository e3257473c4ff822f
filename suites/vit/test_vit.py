from pytest_flagperf.benchmark import TrainingBenchmark


class TestVit(TrainingBenchmark):
    pass
