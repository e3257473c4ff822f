"""The set of the reference scale is read, its answers are found in the last message, and answers are sampled."""

import asyncio
import sys

import checking
import pyarrow
from common.serving.client import Client, Request
from common.serving.process import ServerProcess
from common.serving.questions import FILE, Questions, found
from common.serving.trained import ContinuouslyBatched
from pyarrow import parquet

from tests.suites import served

_FINAL = "<|channel|>analysis<|message|>Is the answer B? Answer: B<|end|><|start|>assistant<|channel|>final<|message|>"


def check_an_answer_is_that_of_the_last_message() -> None:
    choices = {
        "**C**": "C", "C) because": "C", "The answer is C.": "C", "A good start. Answer: **C**": "C",
        r"\boxed{\text{C}}": "C",
        "A good question": None, "": None,
    }  # fmt: skip
    for text, expected in choices.items():
        assert found("gpqa_diamond", f"{_FINAL}{text}<|return|>") == expected, text
    assert found("gpqa_diamond", "<|channel|>analysis<|message|>Answer: B") is None, "it was cut while it thought"
    numbers = {
        r"12 or \boxed{ 070 }": "70",
        "So the answer is 7.": "7",
        r"\boxed{0}": "0",
        r"\boxed{x}": None,
        "7": None,
    }
    for text, expected in numbers.items():
        assert found("aime25", f"{_FINAL}{text}") == expected, text


def check_the_parts_with_one_right_answer_are_read() -> None:
    file = checking.SCRATCH / FILE
    parts = ["AIME25", "gpqa_diamond", "livecodebench_v6"]
    columns = {"input_tokens": [[1, 2], [3], [4]], "dataset": parts, "ground_truth": ["070", "B", "{}"]}
    parquet.write_table(pyarrow.table(columns), file)
    questions = Questions(checking.SCRATCH)
    assert [[*one.prompt] for one in questions.questions] == [[1, 2], [3]]
    first, second = questions.questions
    assert questions.score(first, rf"{_FINAL}\boxed{{70}}") == {"aime25": 100.0}
    assert questions.score(second, f"{_FINAL}C") == {"gpqa_diamond": 0.0}
    parquet.write_table(pyarrow.table({"dataset": parts, "ground_truth": parts}), file)
    checking.raises(ValueError, lambda: Questions(checking.SCRATCH), FILE, "dataset, ground_truth; expected")
    parquet.write_table(pyarrow.table({**columns, "dataset": ["x", "y", "z"]}), file)
    checking.raises(ValueError, lambda: Questions(checking.SCRATCH), "no row with aime25 or gpqa_diamond")
    file.write_text("{}")
    checking.raises(ValueError, lambda: Questions(checking.SCRATCH), FILE, "expected a Parquet file")


def check_answers_are_sampled_at_a_temperature() -> None:
    model = served.trained(checking.SUITE, ContinuouslyBatched)
    prompt = model.texts[0][:32]

    def answers(temperature: float) -> list[list[int]]:
        words = ["--model=m", "--device=cpu", "--requests=2", "--places=80", f"--temperature={temperature}"]
        program = [sys.executable, "-m", "common.serving.continuous_batching", str(model.folder), *words]

        async def asked(url: str) -> list[list[int]]:
            with Client(url, "m", 60) as client:
                requests = [Request(number, prompt, 40, temperature=temperature) for number in range(2)]
                return [(await client.complete(request)).tokens for request in requests]

        with ServerProcess(lambda port: [*program, f"--port={port}"], checking.SCRATCH / "server.log") as server:
            server.wait_ready(300)
            return asyncio.run(asked(server.url))

    one, other = answers(1.0)
    assert len(one) == len(other) == 40
    assert one != other, "sampled answers to the same prompt differ"
    one, other = answers(0.0)
    assert one == other, "greedy answers to the same prompt are the same"
