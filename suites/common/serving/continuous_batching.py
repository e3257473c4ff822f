"""Serve a folder with a model by the continuous batching of transformers, with the API of OpenAI."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig
from transformers.utils import logging

from common.serving.server import arguments, serve

_PAGE = 32
"""The places of a page of the cache."""
_MOST_PLACES = 1 << 18
"""The places of the largest cache that is allocated for all requests at once."""
_MOST_TOKENS = 1 << 13
"""The tokens of a forward pass; longer prompts are divided."""


class ContinuousBatching:
    """An engine: transformers' manager, whose thread generates the tokens of all requests together."""

    def __init__(self, folder: str, device: str, requests: int, places: int, temperature: float) -> None:
        logging.disable_progress_bar()
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").to(device)
        blocks = (requests + 1) * -(-places // _PAGE)
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
        self._manager = self._model.init_continuous_batching(
            GenerationConfig(eos_token_id=-1, pad_token_id=0, max_new_tokens=places, **sampling),
            # Without a size the cache takes most of the memory, as one that is too large must; then requests wait.
            ContinuousBatchingConfig(
                page_size=_PAGE, num_blocks=blocks if blocks * _PAGE <= _MOST_PLACES else None,
                max_batch_tokens=min(requests * places, _MOST_TOKENS),
                allow_block_sharing=False,  # shared blocks would spare the work of a known prompt
            ),
        )  # fmt: skip
        self._numbers = itertools.count()
        self._hidden: list[torch.Tensor] | None = None
        self._alone = asyncio.Lock()
        self._model.model.register_forward_hook(self._keep)
        self._manager.start()

    async def answer(self, prompt: Sequence[int], tokens: int) -> AsyncGenerator[list[int], None]:
        outputs: asyncio.Queue[Any] = asyncio.Queue()
        name = f"request{next(self._numbers)}"
        self._manager.register_result_handler(name, outputs.put_nowait)
        if self._manager.add_request(list(prompt), name, tokens, streaming=True) is None:
            raise RuntimeError("the engine has stopped")
        sent, finished = 0, False
        try:
            while not finished:
                output = await outputs.get()
                if output.error:
                    raise RuntimeError(output.error)
                finished = output.is_finished()
                new, sent = output.generated_tokens[sent:], len(output.generated_tokens)
                if new:
                    yield new
        finally:
            if not finished:
                self._manager.cancel_request(name)

    async def log_probabilities(self, tokens: Sequence[int]) -> list[float]:
        """Return the log probability of each token but the first, from the states of the engine's own forward pass."""
        async with self._alone:
            self._hidden = []
            async for _ in self.answer(tokens, 1):
                pass
            states, self._hidden = torch.cat(self._hidden, 1)[0, : len(tokens) - 1], None
        with torch.no_grad():
            logits = self._model.lm_head(states).float().log_softmax(-1)
        following = torch.tensor(tokens[1:], device=logits.device)
        values: list[float] = logits.gather(-1, following[:, None])[:, 0].tolist()
        return values

    def _keep(self, module: object, given: object, output: Any) -> None:  # noqa: ARG002 - the signature of a hook
        if self._hidden is not None:
            self._hidden.append(output.last_hidden_state.detach())


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("folder")
    parser.add_argument("--device", required=True)
    parser.add_argument("--requests", type=int, required=True, help="how many the cache must hold at once")
    parser.add_argument("--temperature", type=float, default=0.0, help="of all answers; 0: greedy")
    parser.add_argument("--places", type=int, required=True, help="the most tokens of a prompt with its answer")
    options = parser.parse_args()
    serve(
        lambda: ContinuousBatching(
            options.folder, options.device, options.requests, options.places, options.temperature
        ),
        options.port,
        options.model,
    )


if __name__ == "__main__":
    main()
