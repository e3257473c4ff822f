from pytest_flagperf.benchmark import MeasurementBenchmark


class TestOperators(MeasurementBenchmark):
    pass
