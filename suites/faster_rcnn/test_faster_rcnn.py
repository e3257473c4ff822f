from pytest_flagperf.benchmark import TrainingBenchmark


class TestFasterRcnn(TrainingBenchmark):
    pass
