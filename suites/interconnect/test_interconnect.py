from pytest_flagperf.benchmark import MeasurementBenchmark


class TestInterconnect(MeasurementBenchmark):
    pass
