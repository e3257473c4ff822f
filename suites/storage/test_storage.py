from pytest_flagperf.benchmark import MeasurementBenchmark


class TestStorage(MeasurementBenchmark):
    pass
