"""The Llama that is served by transformers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from common.serving.trained import TrainedModel


class TrainedLlama(TrainedModel):
    """A model of a serving suite."""

    name = "llama31_8b"

    def command(self, port: int) -> Sequence[str]:
        program = Path(__file__).with_name("serve.py")
        return [
            sys.executable, str(program), str(self.folder), f"--port={port}", f"--model={self.name}",
            f"--device={self.ctx.device}", f"--requests={max(self.ctx.config.concurrencies)}",
            f"--places={self.places}",
        ]  # fmt: skip
