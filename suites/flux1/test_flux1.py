from pytest_flagperf.benchmark import TrainingBenchmark


class TestFlux1(TrainingBenchmark):
    pass
