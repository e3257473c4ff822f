from pytest_flagperf.benchmark import TrainingBenchmark


class TestEfficientnet(TrainingBenchmark):
    pass
