"""The rules of docs/architecture.md, checked by parsing the code."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from pytest_flagperf.catalog import Catalog
from pytest_flagperf.stored import layout
from tests.helpers.trees import write, write_suite

REPO = Path(__file__).resolve().parents[2]
FRAMEWORKS = {"torch", "torchvision", "timm", "transformers", "paddle", "tensorflow", "keras", "mindspore"}
ALLOWED_BY_FOLDER = {
    "pytorch": {"torch", "numpy"},
    "paddle": {"paddle", "numpy"},
    "tensorflow2": {"tensorflow", "keras", "numpy"},
    "mindspore": {"mindspore", "numpy"},
    "training": {"numpy"},
}
"""The packages that a folder of the driver may import beside the standard library."""
FOR_ANY_VENDOR = {
    "torch", "paddlepaddle", "tensorflow", "keras", "mindspore", "torchvision", "timm", "transformers", "diffusers",
    "tokenizers", "safetensors",
    "sentencepiece", "sacrebleu", "sacremoses", "jieba", "nltk", "rouge-score", "pyarrow",
    "numpy", "setuptools", "h5py", "pillow", "soundfile", "faster-coco-eval",
}  # fmt: skip
"""The packages that suites may require: they run on the hardware of any vendor."""
OPTIONAL = {
    "common/images/dali.py": {"nvidia"},
    "common/language/low_precision.py": {"torchao"},
    "common/language/tests/low_precision.py": {"torchao"},
}
"""The packages for some hardware that shared code imports late, when a config selects them; no suite requires them."""
IMPORTED_AS = {
    "pillow": "PIL",
    "rouge-score": "rouge_score",
    "paddlepaddle": "paddle",
    "faster-coco-eval": "faster_coco_eval",
}

# A module imports only modules of lower layers, or of its own package.
LAYERS = [
    {"printable"}, {"problems"}, {"packages"}, {"typed"}, {"hooks"}, {"kind"}, {"case"}, {"progress"}, {"stored"},
    {"docker_words", "expected"}, {"redaction"}, {"settings", "hosts"}, {"runtime"}, {"catalog"}, {"config"},
    {"host_yaml"}, {"original"}, {"plan"}, {"selection"}, {"engines"}, {"running"}, {"kinds"}, {"commands"},
    {"benchmark", "__main__"}, {"plugin"},
]  # fmt: skip
# Beside the layers: these import only COMMON, and the ones before them. Each has the lowest layer that may import it.
BESIDE = {"results": "engines", "report": "kinds"}
# Imported by both sides: escaping of text, hooks of plugins, the grammar of cases, and the files of a run.
COMMON = {"printable", "problems", "packages", "typed", "hooks", "kind", "case", "progress", "stored"}
# Imports of higher layers for annotations only: every layer may call hooks and kinds, whose arguments are of all.
FOR_ANNOTATIONS = {"hooks", "kind"}


def modules(package: str) -> list[Path]:
    return sorted((REPO / package).rglob("*.py"))


def breaches(of: Callable[[Path], Iterable[str]], *packages: str) -> dict[str, list[str]]:
    """The breaches of a rule in all modules of the packages, by the file's path."""
    by_file = {path.relative_to(REPO).as_posix(): list(of(path)) for name in packages for path in modules(name)}
    assert by_file, packages
    return {file: found for file, found in by_file.items() if found}


def packages_of(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def imports(path: Path, *, top_level_only: bool = False, run_time_only: bool = False) -> Iterator[str]:
    """The modules that a file imports; with top_level_only only those imported when the file is imported.

    With run_time_only without those that are imported for annotations.
    """
    for module, name in imported_names(path, top_level_only=top_level_only, run_time_only=run_time_only):
        yield module
        if name:
            yield f"{module}.{name}"


def imported_names(path: Path, *, top_level_only: bool, run_time_only: bool = False) -> tuple[tuple[str, str], ...]:
    """The modules that a file imports, each with a name that it takes from the module; empty for the module itself."""
    folder = path.relative_to(REPO).parent.parts if path.is_relative_to(REPO) else ()
    return _imported_names(path.read_text(encoding="utf-8"), folder, top_level_only, run_time_only)


@cache  # the rules read the same files
def _imported_names(
    text: str, folder: tuple[str, ...], top_level_only: bool, run_time_only: bool
) -> tuple[tuple[str, str], ...]:
    tree, found = ast.parse(text), []
    for node in _running(tree, functions=run_time_only) if top_level_only or run_time_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = folder[: len(folder) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            found += [(module, alias.name) for alias in node.names]
    return tuple(found)


def _running(tree: ast.AST, *, functions: bool = False) -> Iterator[ast.AST]:
    """The nodes that run when the module is imported: outside TYPE_CHECKING and, without functions, outside them."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and not functions:
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        yield node
        yield from _running(node, functions=functions)


def part_of(module: str) -> str | None:
    """The part of the harness that a module belongs to: pytest_flagperf.hosts.local -> hosts."""
    names = module.split(".")
    return names[1] if names[0] == "pytest_flagperf" and len(names) > 1 else None


def layer_of(part: str) -> int | None:
    return next((number for number, parts in enumerate(LAYERS) if part in parts), None)


def upward(path: Path) -> list[str]:
    """The imports of a harness file that its layer does not allow."""
    own = path.relative_to(REPO / "pytest_flagperf").parts[0].removesuffix(".py")
    names = imports(path, run_time_only=own in FOR_ANNOTATIONS)
    imported = {part for name in names if (part := part_of(name)) is not None and part != own}
    parts = {
        part
        for part in imported
        if (REPO / "pytest_flagperf" / part).is_dir() or (REPO / "pytest_flagperf" / f"{part}.py").is_file()
    }
    if own in BESIDE:
        return sorted(parts - COMMON - set([*BESIDE][: [*BESIDE].index(own)]))
    layer = layer_of(own)
    if layer is None:
        return [] if own == "__init__" else [f"{own} has no layer"]
    below = set().union(*LAYERS[:layer]) | {part for part, lowest in BESIDE.items() if layer >= (layer_of(lowest) or 0)}
    return sorted(parts - below)


def test_a_module_imports_only_lower_layers() -> None:
    assert breaches(upward, "pytest_flagperf") == {}


@pytest.mark.parametrize(
    ("module", "code", "found"),
    [
        ("case", "def late():\n    from pytest_flagperf.plan import Plan\n", ["plan"]),
        ("hooks", "if TYPE_CHECKING:\n    from pytest_flagperf.plan import Plan\n", []),
        ("hooks", "def late():\n    from pytest_flagperf.plan import Plan\n", ["plan"]),
        ("results", "import pytest_flagperf.running.run\n", ["running"]),
        ("running", "import pytest_flagperf.results, pytest_flagperf.report.charts\n", ["report"]),
    ],
)
def test_an_upward_import_is_detected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str, code: str, found: list[str]
) -> None:
    monkeypatch.setitem(globals(), "REPO", tmp_path)
    for name in ("plan", "report", "results", "running"):
        write(tmp_path, f"pytest_flagperf/{name}.py", "")
    assert upward(write(tmp_path, f"pytest_flagperf/{module}.py", code)) == found


PACKAGES = "pytest_flagperf", "flagperf_driver"
OF_DEVELOPERS = "benchmarks", "docsite", "tools"


def import_graph(*, top_level_only: bool, packages: Sequence[str] = PACKAGES) -> dict[str, set[str]]:
    """The modules of the packages that each of them imports."""
    paths = (path for package in packages for path in modules(package))
    files = {".".join(path.relative_to(REPO).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    graph = {}
    for module, path in files.items():
        annotated = not top_level_only and part_of(module) in FOR_ANNOTATIONS
        found = imported_names(path, top_level_only=top_level_only, run_time_only=annotated)
        names = {full if (full := f"{source}.{name}") in files else source for source, name in found}
        graph[module] = names & files.keys() - {module}
    return graph


def of_groups(graph: dict[str, set[str]], group_of: Callable[[str], str]) -> dict[str, set[str]]:
    """The groups whose modules import from each group; a group and those in it are one."""
    groups: dict[str, set[str]] = {}
    for module, imported in graph.items():
        own = group_of(module)
        groups.setdefault(own, set()).update(
            other
            for other in map(group_of, imported)
            if not f"{other}.".startswith(f"{own}.") and not f"{own}.".startswith(f"{other}.")
        )
    return groups


def folder_of(module: str) -> str:
    """The folder of a module; a module beside the folders of a package counts as one."""
    path = REPO.joinpath(*module.split("."))
    return module if path.is_dir() or module.count(".") == 1 else module.rpartition(".")[0]


def package_of(module: str) -> str:
    return module.partition(".")[0]


def circles(graph: dict[str, set[str]]) -> list[str]:
    """A sorted list of all names that import themselves through others."""
    left = dict(graph)
    while ends := {name for name, imported in left.items() if not imported & left.keys()}:
        left = {name: imported for name, imported in left.items() if name not in ends}
    while starts := left.keys() - set().union(*left.values()):
        left = {name: imported for name, imported in left.items() if name not in starts}
    return sorted(left)


def test_no_circle_of_imports() -> None:
    assert circles(import_graph(top_level_only=False)) == []
    assert circles(of_groups(import_graph(top_level_only=True), folder_of)) == []
    assert circles(of_groups(import_graph(top_level_only=False, packages=OF_DEVELOPERS), package_of)) == []


def test_a_circle_is_detected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(globals(), "REPO", tmp_path)
    for file, text in {
        "logs/read.py": "from ..measured import outcome\n",
        "logs/write.py": "",
        "measured/outcome.py": "if TYPE_CHECKING:\n    from pytest_flagperf.logs.read import Log\n",
        "measured/measure.py": "import pytest_flagperf.logs.write\n",
    }.items():
        write(tmp_path, f"pytest_flagperf/{file}", text)
    both = ["pytest_flagperf.logs.read", "pytest_flagperf.measured.outcome"]
    assert circles(import_graph(top_level_only=False)) == both
    assert circles(graph := import_graph(top_level_only=True)) == []
    assert circles(of_groups(graph, folder_of)) == ["pytest_flagperf.logs", "pytest_flagperf.measured"]
    write(tmp_path, "tools/readme.py", "import benchmarks.publish\n")
    write(tmp_path, "tools/markers.py", "")
    write(tmp_path, "benchmarks/publish.py", "def late():\n    from tools import markers\n")
    late = import_graph(top_level_only=False, packages=("benchmarks", "tools"))
    assert (circles(late), circles(of_groups(late, package_of))) == ([], ["benchmarks", "tools"])


LIBRARIES = [
    (FRAMEWORKS | {"numpy", "suites", "vendors", "rich", "boto3", "botocore"}, []),
    ({"pytest", "_pytest", "xdist", "pytest_html"}, ["plugin/*.py", "benchmark.py"]),
    ({"fabric", "invoke", "paramiko"}, ["hosts/ssh.py"]),
    ({path.name for path in (REPO / "packages").glob("*/pytest_flagperf_*")}, []),
    ({"docker"}, ["runtime/docker/*.py"]),
]
"""Packages, and the modules of the harness that may import them."""


def forbidden_packages(path: Path) -> list[str]:
    """The packages that a module of the harness imports and may not."""
    file, imported = path.relative_to(REPO / "pytest_flagperf"), packages_of(path)
    return sorted(
        name
        for packages, files in LIBRARIES
        if not any(file.match(allowed) for allowed in files)
        for name in packages & imported
    )


def test_harness_and_driver_import_a_library_where_they_may(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert breaches(forbidden_packages, "pytest_flagperf") == {}
    assert breaches(needed_packages, "flagperf_driver") == {}
    monkeypatch.setitem(globals(), "REPO", tmp_path)
    file = write(tmp_path, "pytest_flagperf/hosts/ssh.py", "import torch, fabric\ndef late():\n    import rich.live\n")
    assert breaches(forbidden_packages, "pytest_flagperf") == {"pytest_flagperf/hosts/ssh.py": ["rich", "torch"]}
    assert forbidden_packages(file.rename(file.with_name("link.py"))) == ["fabric", "rich", "torch"]


def needed_packages(path: Path) -> list[str]:
    """The packages that a module of the driver imports and its folder may not."""
    allowed = set(sys.stdlib_module_names) | {"flagperf_driver"}
    allowed |= ALLOWED_BY_FOLDER.get(path.relative_to(REPO).parts[1], set())
    return sorted(packages_of(path) - allowed)


PUBLIC = {
    "__version__", "case", "catalog", "commands", "config", "engines", "hooks", "hosts", "kind", "kinds", "packages",
    "plan", "printable", "problems", "progress", "report", "results", "runtime", "selection", "settings", "stored",
    "typed",
}  # fmt: skip
"""The parts of the harness that the packages of packages/ may import."""


def beyond_public(path: Path) -> list[str]:
    """The imports of a package's module that are not public."""
    names = {name for name in imports(path) if name.split(".")[0] in ("pytest_flagperf", "flagperf_driver")}
    return sorted(
        name
        for name in names
        if part_of(name) not in {*PUBLIC, None} or any(re.match("_(?!_)", word) for word in name.split("."))
    )


def on_instances(path: Path) -> list[str]:
    """The packages that the code for the instances of a cloud's job imports and may not: images have only Python."""
    allowed = {*sys.stdlib_module_names, "flagperf_driver", "moxing", "flagperf_job"}
    own = f"{'.'.join(path.relative_to(REPO).parent.parts)}." if path.is_relative_to(REPO) else "."
    others = {name for name in imports(path) if not f"{name}.".startswith(own)}
    return sorted(name for name in others if name.split(".")[0] not in allowed)


def test_a_package_imports_only_public_parts_of_others(tmp_path: Path) -> None:
    folders = {path.name: path.relative_to(REPO).as_posix() for path in (REPO / "packages").glob("*/pytest_flagperf_*")}
    assert breaches(beyond_public, *folders.values()) == {}
    used = {name: set().union(*map(packages_of, modules(path))) - {name} for name, path in folders.items()}
    assert circles({name: others & folders.keys() for name, others in used.items()}) == []
    assert breaches(on_instances, "packages/modelarts/pytest_flagperf_modelarts/job") == {}
    code = "from pytest_flagperf.hosts import Host, _x\nfrom pytest_flagperf.running import run\nimport boto3\n"
    file = write(tmp_path, "a.py", code)
    private = ["pytest_flagperf.hosts._x", "pytest_flagperf.running", "pytest_flagperf.running.run"]
    assert beyond_public(file) == private
    assert {name.split(".")[0] for name in on_instances(file)} == {"boto3", "pytest_flagperf"}


def test_no_vendor_and_no_model_is_named_in_shared_code() -> None:
    """A name that many files contain, such as a vendor called made or rank, is a word; intel-rapl is one of Linux."""
    core = ("pytest_flagperf", "flagperf_driver")

    def words_of(path: Path) -> set[str]:
        return set(re.findall(r"intel-rapl|[a-z0-9_]+", path.read_text(encoding="utf-8").lower()))

    files = Counter(word for folder in core for path in (REPO / folder).rglob("*.py") for word in words_of(path))
    catalog = Catalog.scan([REPO])
    names = {suite.model for suite in catalog.trainings.values()} | {*catalog.vendors}
    rare = {name for name in names if files[name] <= 20} - {"acme"}  # the vendor of the examples
    assert {"nvidia", "glm"} <= rare, "the control"
    assert not {name for name in ("cpu", "made", "node", "rank") if files[name] <= 20}
    assert breaches(lambda path: sorted(rare & words_of(path)), *core) == {}


def shared_class_names(root: Path, *packages: str) -> dict[str, list[str]]:
    """The classes that have a name in common, by this name: FILE:LINE of each."""
    places: dict[str, list[str]] = {}
    for path in (path for name in packages for path in sorted((root / name).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{path.relative_to(root).as_posix()}:{node.lineno}")
    return {name: of_name for name, of_name in places.items() if len(of_name) > 1}


def test_a_class_name_stands_for_one_thing(tmp_path: Path) -> None:
    packages = [path.relative_to(REPO).as_posix() for path in (REPO / "packages").glob("*/pytest_flagperf_*")]
    assert shared_class_names(REPO, "pytest_flagperf", "flagperf_driver", *packages) == {}
    write(tmp_path, "core/job.py", "class Job: ...\n\nclass Node: ...\n")
    write(tmp_path, "package/job.py", "def make():\n    class Job: ...\n")
    assert shared_class_names(tmp_path, "core", "package") == {"Job": ["core/job.py:1", "package/job.py:2"]}


def foreign(suite: Path) -> list[str]:
    """The imports and requirements of a standard case that need a vendor's hardware, as FILE: NAME."""
    own = {path.stem for path in suite.rglob("*.py")} | {"common"}
    packages = {IMPORTED_AS.get(name, name) for name in FOR_ANY_VENDOR}
    allowed = set(sys.stdlib_module_names) | {"flagperf_driver", "pytest_flagperf", "pytest"} | packages | own
    packages_of_vendors = [
        f"{path.relative_to(suite)}: {name}"
        for path in sorted(suite.rglob("*.py"))
        for name in sorted({name.split(".")[0] for name in (*imports(path), *named_imports(path))} - allowed)
        if name not in OPTIONAL.get(path.relative_to(suite.parent).as_posix(), ())
        if not (path.parent.name == "tests" and name in ("checking", "tests"))  # the tests' own modules
    ]
    for path in sorted(suite.rglob("requirements*.txt")):
        lines = (line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
        names = {re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower() or line for line in lines if line}
        packages_of_vendors += [f"{path.relative_to(suite)}: {name}" for name in sorted(names - FOR_ANY_VENDOR)]
    return packages_of_vendors


def named_imports(path: Path) -> Iterator[str]:
    """The modules that a file imports by their names in strings: importlib.import_module("x"), __import__("x")."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in ("import_module", "__import__"):
            yield str(node.args[0].value)


def used_of_common(suite: Path) -> set[str]:
    """The folders of suites/common that a suite's code imports, also through these folders."""
    common, used, files = suite.parents[1] / "common", set[str](), set(suite.rglob("*.py"))
    while files:
        names = {name.split(".")[1] for path in files for name in imports(path) if name.startswith("common.")}
        new = {name for name in names if (common / name).is_dir()} - used
        used |= new
        files = {path for name in new for path in (common / name).rglob("*.py")}
    return used


def wrong_declarations(root: Path) -> list[str]:
    """The suites whose suite.toml does not list exactly the folders that they use."""
    suites = Catalog.scan([root]).suites.values()
    return [
        f"{suite.name}: common = {sorted(suite.common)}, imports {sorted(used)}"
        for suite in suites
        if set(suite.common) != (used := used_of_common(suite.path))
    ]


def test_a_suite_declares_what_it_uses_of_common(tmp_path: Path) -> None:
    assert wrong_declarations(REPO) == []
    toml = write_suite(tmp_path) / "suite.toml"
    write(tmp_path, "suites/common/first/__init__.py", "import common.second.reader\n")
    write(tmp_path, "suites/common/second/__init__.py", "")
    write(tmp_path, "suites/common/second/reader.py", "from common import shares\n")
    write(tmp_path, "suites/common/shares.py", "")
    rest = toml.read_text(encoding="utf-8")
    for code, declared, expected in [
        ("from common import first\n", ["first", "second"], []),
        ("from common import first\n", ["first"], ["common = ['first'], imports ['first', 'second']"]),
        ("import common.second.reader\n", [], ["common = [], imports ['second']"]),
        ("from common import shares\n", ["second"], ["common = ['second'], imports []"]),
        ("from common import shares\n", [], []),
    ]:
        write(tmp_path, "suites/toy/pytorch/data.py", code)
        toml.write_text(f"common = {declared}\n{rest}", encoding="utf-8")
        assert wrong_declarations(tmp_path) == [f"toy:pytorch: {text}" for text in expected]


def test_a_standard_case_has_no_package_of_a_vendor() -> None:
    suites = sorted(path for path in (REPO / "suites").iterdir() if path.is_dir())
    assert {suite.name: found for suite in suites if (found := foreign(suite))} == {}


def test_an_optional_package_of_a_vendor_is_imported_late(tmp_path: Path) -> None:
    for file, packages in OPTIONAL.items():
        path = REPO / "suites" / file
        assert packages <= {name.split(".")[0] for name in imports(path)}, "the exception is not used"
        assert not packages & {name.split(".")[0] for name in imports(path, top_level_only=True)}
    for file in ("common/images/dali.py", "common/images/folders.py", "toy/images/dali.py"):
        write(tmp_path, file, "def late():\n    import nvidia\n")
    assert foreign(tmp_path / "common") == ["images/folders.py: nvidia"]
    assert foreign(tmp_path / "toy") == ["images/dali.py: nvidia"]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("model.py", "import torch\n\ndef late():\n    import torch_npu\n", ["model.py: torch_npu"]),
        ("model.py", "try:\n    from apex.optimizers import A\nexcept ImportError:\n    pass\n", ["model.py: apex"]),
        ("model.py", "import importlib\nimportlib.import_module('torch_mlu.core')\n", ["model.py: torch_mlu"]),
        ("requirements.txt", "torch==2.15.0\n# apex\nnvidia-dali>=1.4\n", ["requirements.txt: nvidia-dali"]),
        ("requirements.txt", "git+https://example.org/apex.git\n", ["requirements.txt: git"]),
        ("model.py", "import torch\nimport data\nfrom PIL import Image\n", []),
        ("tests/model.py", "import checking\nimport apex\nfrom tests import x\n", ["tests/model.py: apex"]),
        ("model.py", "from tests import trials\n", ["model.py: tests"]),
    ],
)
def test_a_package_of_a_vendor_is_detected(tmp_path: Path, name: str, text: str, expected: list[str]) -> None:
    (tmp_path / "data.py").touch()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    assert foreign(tmp_path) == expected


NAMED_FILES = {one for name, one in vars(layout).items() if name.isupper() and isinstance(one, str) and "." in one}
NAMED_PARTS = ("_noderank", ".out.log", ".exit.json")
"""Parts of names that stored/layout.py makes."""


def spelled_names(path: Path) -> list[str]:
    """The string literals that spell the name of a file or folder of a run, alone or in a path; sentences may."""
    texts = {
        node.value
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value
    }
    return sorted(
        text for text in texts if NAMED_FILES.intersection(text.split("/")) or any(part in text for part in NAMED_PARTS)
    )


def test_only_one_module_spells_the_names_of_stored_files(tmp_path: Path) -> None:
    files = breaches(spelled_names, "pytest_flagperf")
    assert {file: names for file, names in files.items() if Path(file).parent.name != "stored"} == {}
    file = tmp_path / "reader.py"
    file.write_text(
        '"""Reads plan.json."""\nA = "plan.json"\nB = f"{A}/round.json"\nC = f"h_noderank{A}"\nD = f"rank{A}.out.log"\n'
        'E = "see plan.json"\nF = "results.csv"\n'
    )
    assert spelled_names(file) == [".out.log", "/round.json", "h_noderank", "plan.json", "results.csv"]


MOST_LINES, MOST_METHODS = 800, 16


def exceeded_limits(root: Path) -> Iterator[str]:
    """Modules with too many lines and classes with too many public methods."""
    for path in sorted(root.rglob("*.py")):
        text, where = path.read_text(encoding="utf-8"), path.relative_to(root.parent)
        if (lines := text.count("\n")) > MOST_LINES:
            yield f"{where}: {lines} lines; at most {MOST_LINES}"
        for class_def in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)):
            names = [node.name for node in class_def.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
            if (public := sum(not name.startswith("_") for name in names)) > MOST_METHODS:
                yield f"{where}: class {class_def.name}: {public} public methods; at most {MOST_METHODS}"


def test_nothing_is_too_large(tmp_path: Path) -> None:
    assert [line for package in PACKAGES for line in exceeded_limits(REPO / package)] == []
    methods = "".join(f"    def method{number}(self) -> None: ...\n" for number in range(MOST_METHODS + 1))
    write(tmp_path, "package/module.py", f"class Large:\n{methods}" + "\n" * MOST_LINES)
    assert list(exceeded_limits(tmp_path / "package")) == [
        "package/module.py: 818 lines; at most 800",
        "package/module.py: class Large: 17 public methods; at most 16",
    ]
