from pytest_flagperf.benchmark import MeasurementBenchmark


class TestMainMemory(MeasurementBenchmark):
    pass
