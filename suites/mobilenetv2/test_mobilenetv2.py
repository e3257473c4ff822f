from pytest_flagperf.benchmark import TrainingBenchmark


class TestMobilenetv2(TrainingBenchmark):
    pass
