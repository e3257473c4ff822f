from pytest_flagperf.benchmark import TrainingBenchmark


class TestLlama321B(TrainingBenchmark):
    pass
