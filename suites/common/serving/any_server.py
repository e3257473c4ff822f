"""A model behind any server with OpenAI's API: the words of the config start it, or it runs already."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from common.serving.trained import TrainedModel
from flagperf_driver.pytorch import Context


class ServedByAny(TrainedModel):
    """The model of the engine ``openai``; without a name in the config the server names it."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self.name = ctx.config.model_name

    def command(self, port: int) -> Sequence[str]:
        """Return the words of the config with what this run knows."""
        values = {
            "{python}": sys.executable, "{model}": self.folder, "{port}": port, "{places}": self.places,
            "{device}": self.ctx.device, "{requests}": max(self.ctx.config.concurrencies),
        }  # fmt: skip
        words: list[str] = []
        for word in self.ctx.config.server_command:
            for place, value in values.items():
                word = word.replace(place, str(value))
            words.append(word)
        return words
