from pytest_flagperf.benchmark import TrainingBenchmark


class TestMaskRCNN(TrainingBenchmark):
    pass
