from pytest_flagperf.benchmark import TrainingBenchmark


class TestBert(TrainingBenchmark):
    pass
