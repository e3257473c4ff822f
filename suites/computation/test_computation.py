from pytest_flagperf.benchmark import MeasurementBenchmark


class TestComputation(MeasurementBenchmark):
    pass
