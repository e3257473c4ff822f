from pytest_flagperf.benchmark import TrainingBenchmark


class TestCpm(TrainingBenchmark):
    pass
