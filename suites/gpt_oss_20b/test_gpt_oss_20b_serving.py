from pytest_flagperf.benchmark import Benchmark


class TestGptOss20BServing(Benchmark):
    kind = "serving"
