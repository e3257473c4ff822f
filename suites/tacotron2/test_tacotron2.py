from pytest_flagperf.benchmark import TrainingBenchmark


class TestTacotron2(TrainingBenchmark):
    pass
