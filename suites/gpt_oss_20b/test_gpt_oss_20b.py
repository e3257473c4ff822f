from pytest_flagperf.benchmark import TrainingBenchmark


class TestGptOss20b(TrainingBenchmark):
    pass
