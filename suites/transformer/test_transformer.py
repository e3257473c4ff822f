from pytest_flagperf.benchmark import TrainingBenchmark


class TestTransformer(TrainingBenchmark):
    pass
