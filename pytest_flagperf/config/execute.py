"""Run one config file with limits, in a separate process that needs only the standard library.

``execute.py FILE SECONDS BYTES`` writes JSON to stdout: ``names``, a list of ``[name, value, file, line]``, or
``problems``, a list of sentences. The file itself has no stdout. A file that runs for too long ends the process;
``faulthandler`` first writes the running line to stderr, even if a single operation never ends.

The file may import its neighbours and the standard library. Frameworks belong to the training program, not to its
configuration.
"""

from __future__ import annotations

import ast
import builtins
import faulthandler
import json
import math
import os
import sys
import types
from collections.abc import Mapping
from pathlib import Path

# Each import slows down every such config file: no dataclasses, typing or traceback here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

_MAX_DEPTH = 50
_MAX_SIZE = 1 << 20
_LARGEST = 1 << 63  # this program cannot import other modules of the package


class _RefusedError(Exception):
    """An invalid config file; the text names file and line."""


class _Name:
    """The value of a name, and the place of the assignment."""

    def __init__(self, value: object, file: Path, line: int) -> None:
        self.value, self.file, self.line = value, file, line


class _Import:
    """An import statement in a file; ``source`` is the neighbour, or None for the standard library.

    ``names`` maps each name in this file to its name in the imported module; ``*`` stands for all names.
    """

    def __init__(self, node: ast.Import | ast.ImportFrom, folder: Path) -> None:
        self.first, self.last = node.lineno, node.end_lineno or node.lineno
        self.names = {alias.asname or alias.name: alias.name for alias in node.names}
        source = node.module if isinstance(node, ast.ImportFrom) else None
        self.source = source if source and _is_file(folder / f"{source}.py") else None


class _Folder:
    """The files of one folder that import each other, each run once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.loaded: dict[str, tuple[dict[str, _Name], types.ModuleType]] = {}
        self.running: list[str] = []

    def load(self, file: Path) -> tuple[dict[str, _Name], types.ModuleType]:
        if file.stem in self.running:
            circle = " -> ".join([*self.running, file.stem])
            raise _RefusedError(f"{file}: the files import each other in a circle: {circle}")
        if file.stem not in self.loaded:
            self.running.append(file.stem)
            self.loaded[file.stem] = self._run(file)
            self.running.remove(file.stem)
        return self.loaded[file.stem]

    def _run(self, file: Path) -> tuple[dict[str, _Name], types.ModuleType]:
        tree = _parse(file)
        module = types.ModuleType(file.stem)
        own_builtins = {**vars(builtins), "__import__": self._import}
        namespace = vars(module)
        namespace |= {"__file__": str(file), "__builtins__": own_builtins}
        lines = _Lines(namespace)
        try:
            exec(compile(tree, str(file), "exec", dont_inherit=True), namespace, lines)  # noqa: S102 - a config file is code
        except _RefusedError:
            raise
        except (Exception, SystemExit) as error:
            raise _RefusedError(_raised(file, error)) from error
        imports = [
            _Import(node, self.path) for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))
        ]
        return dict(self._names(file, namespace, lines.line, imports)), module

    def _import(
        self,
        name: str,
        _globals: Mapping[str, object] | None = None,
        _locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> types.ModuleType:
        """Replace ``__import__`` in a config file."""
        if level == 1 and not name:
            package = types.ModuleType(self.path.name)
            for neighbour in fromlist or ():
                setattr(package, neighbour, self._neighbour(neighbour))
            return package
        if level <= 1 and _is_file(self.path / f"{name}.py"):
            return self._neighbour(name)
        top = name.partition(".")[0]
        if level == 0 and (top in sys.stdlib_module_names or top == "__future__"):
            return __import__(name, None, None, fromlist or (), 0)
        raise ImportError(
            f"{'.' * level}{name} cannot be imported: a config file may import the files beside it in "
            f"{self.path.name}/ and Python's standard library; frameworks belong to the training program"
        )

    def _neighbour(self, name: str) -> types.ModuleType:
        return self.load(self.path / f"{name}.py")[1]

    def _names(
        self, file: Path, namespace: Mapping[str, Any], lines: Mapping[str, int], imports: Sequence[_Import]
    ) -> Iterator[tuple[str, _Name]]:
        for name, line in lines.items():
            if name not in namespace or name.startswith("_") or _is_program(namespace[name]):
                continue
            imported, origin = self._origin(name, namespace[name], line, imports)
            if imported:
                if origin:
                    yield name, origin
                continue
            yield name, _Name(namespace[name], file, line)

    def _origin(self, name: str, value: object, line: int, imports: Sequence[_Import]) -> tuple[bool, _Name | None]:
        """Return whether an import gave the name its value, and the assignment in the neighbour that it came from."""
        for statement in imports:
            imported_name = statement.names.get(name, name if "*" in statement.names else None)
            if not (statement.first <= line <= statement.last) or imported_name is None:
                continue
            if statement.source is None:
                return True, None
            if statement.source not in self.loaded:
                continue
            names, space = self.loaded[statement.source]
            if getattr(space, imported_name, None) is value:
                return True, names.get(imported_name)
        return False, None


class _Lines(dict[str, object]):
    """The locals of a running module: store each name in its globals and note the line of the assignment.

    Names have the order of their last assignments. ``ast`` cannot know which branch of an ``if`` runs.
    """

    def __init__(self, namespace: dict[str, Any]) -> None:
        super().__init__()
        self.namespace = namespace
        self.line: dict[str, int] = {}

    def __setitem__(self, name: str, value: object) -> None:
        self.namespace[name] = value
        self.line.pop(name, None)
        self.line[name] = sys._getframe(1).f_lineno

    def __getitem__(self, name: str) -> Any:
        return self.namespace[name]

    def __delitem__(self, name: str) -> None:
        del self.namespace[name]
        self.line.pop(name, None)


def _is_file(place: Path) -> bool:
    return os.path.isfile(place)  # noqa: PTH113 - Path.is_file raises for a name that is too long


def _parse(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes(), filename=str(file))
    except SyntaxError as error:
        raise _RefusedError(f"{file}:{error.lineno or 1}: invalid Python: {error.msg}") from None
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise _RefusedError(f"{file}: cannot be read: {error or type(error).__name__}") from None


def _raised(file: Path, error: Exception | SystemExit) -> str:
    """Return the problem of an exception, with the last line in the file or a neighbour that was running."""
    if isinstance(error, SyntaxError) and error.filename == str(file):  # raised by the compiler
        return f"{file}:{error.lineno or 1}: invalid Python: {error.msg}"
    where, trace = str(file), error.__traceback__
    while trace is not None:
        place = trace.tb_frame.f_code.co_filename
        if Path(place).parent == file.parent:
            where = f"{place}:{trace.tb_lineno}"
        trace = trace.tb_next
    if isinstance(error, MemoryError):
        return f"{where}: the file needs too much memory; expected at most {sys.argv[3]} bytes"
    return f"{where}: {type(error).__name__}: {_text(error)}"


def _text(value: object) -> str:
    """Return the text of a value, truncated; the config file's code may raise here."""
    try:
        return (str(value) if isinstance(value, BaseException) else repr(value))[:1000]
    except Exception as error:
        return f"<no text: {type(error).__name__}>"


def _is_program(value: object) -> bool:
    return isinstance(value, (types.ModuleType, type)) or callable(value)


# -- the reply ------------------------------------------------------------------------------------------------


class _Encoder:
    """Encode values as JSON; other values become an object with one key that names the type."""

    def __init__(self) -> None:
        self._left = _MAX_SIZE

    def encode(self, value: object, depth: int = 0) -> object:
        self._left -= 1 + (len(value) if isinstance(value, str) else 0)
        if self._left < 0 or depth > _MAX_DEPTH:
            raise ValueError(f"more than {_MAX_SIZE:,} values and characters, or nested too deeply")
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return int(value) if abs(value) < _LARGEST else {"int": hex(value)}
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"float": repr(float(value))}
        if isinstance(value, str):
            return str(value)
        if isinstance(value, list):
            return [self.encode(item, depth + 1) for item in value]
        if isinstance(value, tuple):
            return {"tuple": [self.encode(item, depth + 1) for item in value]}
        if isinstance(value, Mapping):
            return {"dict": [[self.encode(key, depth + 1), self.encode(value[key], depth + 1)] for key in value]}
        return {"other": [type(value).__name__, _text(value)]}


def _reply(file: Path) -> dict[str, object]:
    try:
        names, _ = _Folder(file.parent).load(file)
        encoder, encoded = _Encoder(), []
        for name, given in names.items():
            try:
                encoded.append([name, encoder.encode(given.value), str(given.file), given.line])
            except (ValueError, RecursionError) as error:
                raise _RefusedError(f"{given.file}:{given.line}: {name} is too large: {error}") from None
    except _RefusedError as error:
        return {"problems": [str(error)]}
    except MemoryError:
        return {"problems": [f"{file}: the file needs too much memory; expected at most {sys.argv[3]} bytes"]}
    return {"names": encoded}


def main() -> None:
    """Run the config file given on the command line."""
    file, seconds, size = sys.argv[1:]
    if sys.platform == "linux":  # other systems have no limits of memory, or refuse them
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (int(size), int(size)))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, 64 << 20))
    reply = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    faulthandler.dump_traceback_later(float(seconds), exit=True)
    sys.dont_write_bytecode = True
    with os.fdopen(reply, "w", encoding="ascii") as stream:
        json.dump(_reply(Path(file)), stream)
        stream.flush()
        # Threads and exit handlers of the file do not delay the end.
        os._exit(0)


if __name__ == "__main__":
    main()
