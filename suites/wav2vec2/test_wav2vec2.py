from pytest_flagperf.benchmark import TrainingBenchmark


class TestWav2vec2(TrainingBenchmark):
    pass
