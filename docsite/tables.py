"""Read the keys of dataclasses and of config modules, with their comments and docstrings, and write tables."""

from __future__ import annotations

import ast
import inspect
import io
import json
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

_PIPE = "\\|"
_SECTION = re.compile(r"^# -- (.+?) -+$", re.MULTILINE)


@dataclass(frozen=True)
class Key:
    """One key; ``default`` is empty if the key is required."""

    name: str
    type: str
    default: str
    meaning: str

    @property
    def shown_default(self) -> str:
        return {"": "required", "None": ""}.get(self.default, f"`{self.default}`")


def dataclass_keys(of: type) -> list[Key]:
    """Return the keys of a dataclass, each with its docstring, else with the comment in its line."""
    text = Path(inspect.getfile(of)).read_text(encoding="utf-8")
    (found,) = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == of.__name__)
    defaults = {field.name: field.default for field in fields(of) if field.default is not MISSING}
    keys = [key for key in _keys(found.body, text) if key.name in of.__dataclass_fields__]  # type: ignore[attr-defined]
    hints, of_code = get_type_hints(of), getattr(of, "NOT_KEYS", ())
    keys = [replace(key, type=_type_name(hints[key.name])) for key in keys if key.name not in of_code]
    return [replace(key, default=_written(defaults[key.name])) if key.name in defaults else key for key in keys]


def _type_name(hint: Any) -> str:
    """Return a type as it is written without the names of modules: ``tuple[DataItem, ...] | None``."""
    text = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
    return re.sub(r"[\w.]+\.(\w+)", r"\1", text)


def _written(value: object) -> str:
    """Return a default as TOML has it; an empty value has no text."""
    if value in (None, "", ()) or is_dataclass(value):
        return "None"
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def type_in_toml(annotation: str) -> str:
    """Return the type of a key in words: ``tuple[str, ...] | None`` is a list of texts."""
    plain = annotation.removesuffix(" | None")
    words = {"str": "text", "ObsFolder": "text", "int": "whole number", "float": "number", "bool": "true or false"}
    if plain in words:
        return words[plain]
    if match := re.fullmatch(r"tuple\[(\w+), \.\.\.\]", plain):
        return f"list of {words[match[1]]}s" if match[1] in words else "list of tables"
    return "table"


def module_keys(path: Path) -> tuple[set[str], dict[str, list[Key]]]:
    """Return the keys that a vendor may change, and all keys of a config module by the headings of its sections."""
    text = path.read_text(encoding="utf-8")
    module = ast.parse(text)
    mutable: set[str] = set()
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MUTABLE":
            mutable = set(ast.literal_eval(node.value))
    headings = [(text[: match.start()].count("\n") + 1, match[1]) for match in _SECTION.finditer(text)]
    sections: dict[str, list[Key]] = {}
    for place, statement in enumerate(module.body):
        docstring = [node for node in module.body[place + 1 : place + 2] if isinstance(node, ast.Expr)]
        heading = next((title for line, title in reversed(headings) if line < statement.lineno), "")
        keys = [key for key in _keys([statement, *docstring], text) if key.name != "MUTABLE"]
        if keys:
            sections.setdefault(heading.partition(";")[0].capitalize(), []).extend(keys)
    return mutable, sections


def _keys(body: Sequence[ast.stmt], text: str) -> Iterator[Key]:
    comments = _comments(text)
    for place, node in enumerate(body):
        if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation):
            name, of_type = ast.unparse(node.target), ast.unparse(node.annotation)
        elif isinstance(node, ast.Assign):
            name = ast.unparse(node.targets[0])
            of_type = type(ast.literal_eval(node.value)).__name__
        else:
            continue
        following = body[place + 1] if place + 1 < len(body) else None
        meaning = comments.get(node.end_lineno or node.lineno, "")
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            meaning = str(following.value.value)
        yield Key(name, of_type.replace("'", '"'), _default(node.value, text), meaning)


def _default(value: ast.expr | None, text: str) -> str:
    """Return a default as it is written; the result of a ``default_factory`` is empty."""
    if value is None:
        return ""
    if isinstance(value, ast.Call):
        return "None"
    return (ast.get_source_segment(text, value) or "").strip()


def _comments(text: str) -> dict[int, str]:
    """Return the comments behind code, by line."""
    lines = text.splitlines()
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and lines[token.start[0] - 1][: token.start[1]].strip():
            comment = token.string.lstrip("# ")
            found[token.start[0]] = comment.partition(" - ")[2] if comment.startswith("noqa") else comment
    return found


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', _PIPE) for cell in cells)} |\n" for cells in lines)
