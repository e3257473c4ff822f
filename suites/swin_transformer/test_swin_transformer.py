from pytest_flagperf.benchmark import TrainingBenchmark


class TestSwinTransformer(TrainingBenchmark):
    pass
