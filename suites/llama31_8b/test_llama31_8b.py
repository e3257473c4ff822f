from pytest_flagperf.benchmark import TrainingBenchmark


class TestLlama318B(TrainingBenchmark):
    pass
