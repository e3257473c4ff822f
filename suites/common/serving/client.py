"""The client of a server with OpenAI's API: it sends a request, and notes the time of each token of the answer.

A request has token ids as its prompt, and the answer has the token ids of each event (``return_token_ids``), so that no
tokenizer is between the client and the model.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

from common.serving.http1 import LONGEST_HEAD, HttpError, read_body, read_head

_DONE = b"[DONE]"
_SHOWN = 200


@dataclass(frozen=True)
class Request:
    """A prompt, and how many tokens its answer must have."""

    number: int
    prompt: Sequence[int]
    tokens: int
    text: int | None = None
    """The number of the held-out text that the prompt is the begin of; the answer is judged afterwards."""
    stops: Sequence[int] = ()
    """Tokens that end the answer, which has at most so many tokens then."""
    temperature: float = 0.0


@dataclass
class Answer:
    """What came back, with times of the client's clock in seconds."""

    request: Request
    sent: float
    """When the request was sent; at a fixed rate, when it had to be sent."""
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """When each token arrived; tokens of one event arrived at the same time."""
    ended: float | None = None
    """None if the load ended before the request."""
    problem: str = ""
    """Why the request failed, in a sentence; empty if it was answered."""

    @property
    def first_token_s(self) -> float:
        return self.times[0] - self.sent

    @property
    def gaps_s(self) -> list[float]:
        """The times between two tokens."""
        return [after - before for before, after in itertools.pairwise(self.times)]

    @property
    def token_s(self) -> float:
        """The mean time of a token after the first one."""
        return (self.times[-1] - self.times[0]) / max(len(self.times) - 1, 1)

    def to_json(self, begin: float) -> dict[str, Any]:
        """Return what is stored of the request, with times since ``begin``."""

        def since(time_s: float) -> float:
            return round(time_s - begin, 6)

        return {
            **asdict(self), "request": self.request.number, "prompt": len(self.request.prompt),
            "judged": self.request.text is not None, "sent": since(self.sent), "times": [*map(since, self.times)],
            "ended": None if self.ended is None else since(self.ended),
        }  # fmt: skip


class RequestFailed(Exception):
    """A request was not answered as expected; the message is a sentence."""


class Client:
    """One connection to a server, which the requests of one user share, one after the other; a context closes it."""

    def __init__(self, url: str, model: str, event_timeout_s: float) -> None:
        place = urlsplit(url)
        self._ssl = place.scheme == "https"
        self._host, self._path = place.hostname or "", place.path.rstrip("/")
        self._port = place.port or (443 if self._ssl else 80)
        self._model, self._timeout_s = model, event_timeout_s
        self.tokens = 0
        """How many tokens have arrived so far, also of the request under way."""
        self.under_way: Answer | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def complete(self, request: Request, due: float | None = None) -> Answer:
        """Send a request and return its answer, also of a request that failed; ``due`` is when it had to be sent."""
        body = {
            "model": self._model, "prompt": list(request.prompt), "max_tokens": request.tokens,
            "temperature": request.temperature, "stream": True, "return_token_ids": True,
            **({"top_p": 1.0, "top_k": -1} if request.temperature else {}),
            **({"stop_token_ids": list(request.stops)} if request.stops else {"ignore_eos": True}),
        }  # fmt: skip
        answer = self.under_way = Answer(request, due or 0.0)
        try:
            async with self._limited(answer):
                await self._stream(body, answer)
            _check_length(answer)
        except RequestFailed as error:
            answer.problem = str(error)
            self.close()
        answer.ended, self.under_way = time.perf_counter(), None
        answer.sent = answer.sent or answer.ended
        return answer

    async def log_probabilities(self, tokens: Sequence[int]) -> list[float]:
        """Return the log probability of each token but the first, as the server's model predicts it.

        Raise RequestFailed if the server does not answer so.
        """
        body = {
            "model": self._model, "prompt": list(tokens), "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0,
        }  # fmt: skip
        async with self._limited(None):
            text = b"".join([part async for part in self._post(body)])
        try:
            places = json.loads(text)["choices"][0]["prompt_logprobs"]
            logged = [float(at[str(token)]["logprob"]) for token, at in zip(tokens[1:], places[1:], strict=True)]
        except (ValueError, KeyError, IndexError, TypeError):
            raise RequestFailed(f"the answer has no log probabilities of the prompt: {_shown(text)}") from None
        return logged

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _stream(self, body: Mapping[str, Any], answer: Answer) -> None:
        rest, done = b"", False
        async for part in self._post(body, answer):
            arrived = time.perf_counter()
            *events, rest = (rest + part).split(b"\n\n")
            for event in events:
                if not event.startswith(b"data:"):
                    if event.strip() and not event.startswith(b":"):  # a line with a colon is a comment
                        raise RequestFailed(f"an event is {_shown(event)}; expected data: and JSON")
                    continue
                data = event[5:].strip()
                if data == _DONE:
                    done = True
                    continue
                tokens = self._tokens(data)
                answer.tokens += tokens
                answer.times += [arrived] * len(tokens)
                self.tokens += len(tokens)
        if not done:
            raise RequestFailed(f"the stream ended {_after(answer)}, without {_DONE.decode()}")

    def _tokens(self, data: bytes) -> list[int]:
        """Return the tokens of an event."""
        try:
            event = json.loads(data)
            if "error" in event:
                raise RequestFailed(f"the server sent an error in the stream: {_shown(data)}")
            model, tokens = event["model"], event["choices"][0].get("token_ids") or []
            known = all(isinstance(token, int) for token in tokens)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            known = False
        if not known:
            raise RequestFailed(f"an event is {_shown(data)}; expected JSON with model, choices and their token_ids")
        if model != self._model:
            raise RequestFailed(f"model {model!r} answered; expected {self._model!r}")
        return list(tokens)

    async def _post(self, body: Mapping[str, Any], answer: Answer | None = None) -> AsyncIterator[bytes]:
        """Yield the parts of a response's body; RequestFailed says what went wrong."""
        data = json.dumps(body, separators=(",", ":")).encode()
        head = (
            f"POST {self._path}/v1/completions HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        try:
            reader, writer = await self._connected()
            if answer is not None:
                answer.sent = answer.sent or time.perf_counter()
            writer.write(head.encode() + data)
            response = await read_head(reader)
            if response is None:
                raise RequestFailed("the server closed the connection without an answer")
            status, headers = response
            parts = read_body(reader, headers)
            if status.split(" ")[1:2] != ["200"]:
                text = b"".join([part async for part in parts])
                raise RequestFailed(f"the server answered {status.partition(' ')[2]}: {_shown(text)}")
            async for part in parts:
                self._limit.reschedule(asyncio.get_running_loop().time() + self._timeout_s)
                yield part
            if headers.get("connection", "").lower() == "close":
                self.close()
        except OSError as error:
            where = f"{self._host}:{self._port}"
            raise RequestFailed(f"no connection to {where} {_after(answer)}: {error.strerror or error}") from None
        except HttpError as error:
            raise RequestFailed(f"{error} {_after(answer)}") from None

    @contextlib.asynccontextmanager
    async def _limited(self, answer: Answer | None) -> AsyncIterator[None]:
        """Raise RequestFailed if nothing arrives for the longest time."""
        try:
            async with asyncio.timeout(self._timeout_s) as self._limit:
                yield
        except TimeoutError:
            raise RequestFailed(f"no event for {self._timeout_s:g} s {_after(answer)}") from None

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None or self._streams[0].at_eof():
            self.close()
            self._streams = await asyncio.open_connection(
                self._host, self._port, limit=LONGEST_HEAD, ssl=self._ssl or None
            )
        return self._streams


def _check_length(answer: Answer) -> None:
    """Raise RequestFailed if an answer is too long, or ended too early."""
    request, number = answer.request, len(answer.tokens)
    if number > request.tokens or number < (1 if request.stops else request.tokens):
        fewest = "1 to " if request.stops else ""
        raise RequestFailed(f"the answer has {number} tokens; expected {fewest}{request.tokens}")


def _after(answer: Answer | None) -> str:
    if answer is None:
        return "in a request for log probabilities"
    return f"after {len(answer.tokens)} of {answer.request.tokens} tokens"


def _shown(data: bytes) -> str:
    text = " ".join(data.decode("utf-8", "replace").split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
