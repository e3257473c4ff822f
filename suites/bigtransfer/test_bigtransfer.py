from pytest_flagperf.benchmark import TrainingBenchmark


class TestBigtransfer(TrainingBenchmark):
    pass
