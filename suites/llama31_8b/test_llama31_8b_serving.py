from pytest_flagperf.benchmark import Benchmark


class TestLlama318BServing(Benchmark):
    kind = "serving"
