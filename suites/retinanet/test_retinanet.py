from pytest_flagperf.benchmark import TrainingBenchmark


class TestRetinaNet(TrainingBenchmark):
    pass
