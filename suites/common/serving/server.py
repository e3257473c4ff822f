"""A server with the part of OpenAI's API that the client uses, in front of an engine that has none of its own.

An engine returns the tokens of an answer as they are ready. Everything runs in one thread, beside those of the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from common.serving.http1 import LONGEST_HEAD, HttpError, chunk, read_body, read_head


class Engine(Protocol):
    """Answers requests; many at the same time."""

    def answer(self, prompt: Sequence[int], tokens: int) -> AsyncGenerator[list[int], None]:
        """Yield the next tokens of the answer, which are the most probable ones, until it has as many tokens."""

    async def log_probabilities(self, tokens: Sequence[int]) -> list[float]:
        """Return the log probability of each token but the first."""


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser with the words that every server has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True, help="the name of the model in the API")
    return parser


def serve(engine: Callable[[], Engine], port: int, model: str) -> None:
    """Serve until the process is ended; the engine is created in the thread that serves."""
    asyncio.run(_serve(engine, port, model))


async def _serve(engine: Callable[[], Engine], port: int, model: str) -> None:
    api = _Api(engine(), model)
    server = await asyncio.start_server(api.connection, "127.0.0.1", port, limit=LONGEST_HEAD)
    print(f"serving {model} on port {port}", flush=True)
    async with server:
        await server.serve_forever()


class _Api:
    """The answers to the requests of all connections."""

    def __init__(self, engine: Engine, model: str) -> None:
        self._engine, self._model = engine, model

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection, one after the other."""
        try:
            while (head := await read_head(reader)) is not None:
                line, headers = head
                body = b""
                if "content-length" in headers:
                    body = b"".join([part async for part in read_body(reader, headers)])
                await self._answer(writer, line, body)
        except (HttpError, ConnectionError):
            pass  # the client is gone
        finally:
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, line: str, body: bytes) -> None:
        if not line.startswith("POST "):
            await _send(writer, "200 OK", {"object": "list", "data": [{"id": self._model, "object": "model"}]})
            return
        try:
            asked = json.loads(body)
            prompt, tokens = [int(token) for token in asked["prompt"]], int(asked["max_tokens"])
            stops = {int(token) for token in asked.get("stop_token_ids") or ()}
        except (ValueError, KeyError, TypeError) as error:
            await _send(writer, "400 Bad Request", {"error": {"message": f"{type(error).__name__}: {error}"}})
            return
        try:
            if asked.get("prompt_logprobs") is not None:
                values = zip(prompt[1:], await self._engine.log_probabilities(prompt), strict=True)
                logged = [None, *({str(token): {"logprob": value}} for token, value in values)]
                choice = {"index": 0, "text": "", "finish_reason": "length", "prompt_logprobs": logged}
                await _send(writer, "200 OK", self._event(choice))
                return
            await self._stream(writer, self._engine.answer(prompt, tokens), stops)
        except ConnectionError:
            raise
        except Exception as error:  # the engine may raise anything; a started stream ends without [DONE]
            print(f"{type(error).__name__}: {error}", flush=True)
            await _send(writer, "500 Internal Server Error", {"error": {"message": f"{type(error).__name__}: {error}"}})
            raise ConnectionError from error

    async def _stream(
        self, writer: asyncio.StreamWriter, answer: AsyncGenerator[list[int], None], stops: Collection[int]
    ) -> None:
        """Send an answer up to the first of the tokens that end it."""
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        # The engine must know at once that a client is gone, or that the answer has ended.
        async with contextlib.aclosing(answer):
            async for new in answer:
                last = next((place for place, token in enumerate(new) if token in stops), None)
                tokens = new if last is None else new[: last + 1]
                event = self._event({"index": 0, "text": "", "token_ids": tokens, "finish_reason": None})
                writer.write(head + chunk(b"data: " + json.dumps(event).encode() + b"\n\n"))
                head = b""
                await writer.drain()
                if last is not None:
                    break
        writer.write(head + chunk(b"data: [DONE]\n\n") + chunk(b""))
        await writer.drain()

    def _event(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        return {"object": "text_completion", "model": self._model, "choices": [choice]}


async def _send(writer: asyncio.StreamWriter, status: str, value: Mapping[str, Any]) -> None:
    data = json.dumps(value).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()
