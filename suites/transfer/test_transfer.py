from pytest_flagperf.benchmark import MeasurementBenchmark


class TestTransfer(MeasurementBenchmark):
    pass
