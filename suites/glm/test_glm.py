from pytest_flagperf.benchmark import TrainingBenchmark


class TestGlm(TrainingBenchmark):
    pass
