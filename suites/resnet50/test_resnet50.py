from pytest_flagperf.benchmark import TrainingBenchmark


class TestResNet50(TrainingBenchmark):
    pass
