from pytest_flagperf.benchmark import MeasurementBenchmark


class TestSorting(MeasurementBenchmark):
    pass
