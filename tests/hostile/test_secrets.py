"""Passwords and tokens in options, settings and files: they reach no file of a run and no screen."""

import json
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver import addresses
from pytest_flagperf.commands import main
from pytest_flagperf.plugin.shown_command import shown_command
from pytest_flagperf.running.resume import with_stored_options
from pytest_flagperf.runtime import Image, RuntimeRequest
from pytest_flagperf.settings import OPTIONS, read_settings
from tests.helpers.trees import set_options
from tests.plugin.conftest import Toy, toy

from .small_tree import CASE, VENDOR_TOML, files_with, make_tree, start_run

__all__ = ["toy"]

CANARY = "canary7x"
UNCLOSED = f'-e TOK="a {CANARY}'
CONTAINER_OPTIONS = [
    f"-e TOK={CANARY}", f"-eTOK={CANARY}", f"-e TOK='a {CANARY}'", f'"-e" "TOK={CANARY}"', f"-e TOK=a\\ {CANARY}",
    f"-e TOK=x=;{CANARY}", f"-ite TOK={CANARY}", f"--env=TOK={CANARY}", f"--env='TOK={CANARY}'",
    f"-e TOK={{{CANARY}}}", UNCLOSED, f"TOK={CANARY}", f"--label token={CANARY}", f"--entrypoint {CANARY}",
    f"--mount type=volume,source=a,target=/b,volume-opt=o=password={CANARY}", f"--volume user:{CANARY}@host:/x",
    f"--password={CANARY}", f"-z{CANARY}",
]  # fmt: skip
ADDRESSES = [
    f"https://u:{CANARY}@h/simple",
    f"https://u:p/{CANARY}@h/simple",
    f"https://u:p?{CANARY}@h/simple",
    f"https://{CANARY}@h/simple",
    f"git+https://{CANARY}@h/simple",
    f"https:/u:{CANARY}@h/simple",
    f"u:{CANARY}@h/simple",
    f"https://u:{CANARY}@[::1/simple",
    f"https://h/simple?token={CANARY}",
    f"https://h/simple?a=b;token={CANARY}",
    f"https://h/simple#{CANARY}",
]
HOSTS = [f"user:{CANARY}@h", f"user:p@{CANARY}@h", f"user:p,{CANARY}@@h", f"h1,user:{CANARY}@h2", f"ssh://u:{CANARY}@h"]
OTHERS: list[Mapping[str, Any]] = [
    {"image": f"u:{CANARY}@registry/image"}, {"set": [f"TOKEN={CANARY}"]}, {"set": [f"note=https://u:{CANARY}@h"]},
    {"set": [f"TOKEN {CANARY}"]}, {"data_dir": f"s3://key:{CANARY}@bucket/x"}, {"reports": f"https://u:{CANARY}@h/x"},
    {"case": [f"{CASE}=s3://key:{CANARY}@bucket/x"]},
]  # fmt: skip
SETTINGS_FILES = [
    f'container-opt = "-e TOK={CANARY}"', f'container-opt = ["-e", "TOK={CANARY}", 3]',
    f'container-opt = ["-e TOK=\'{CANARY}"]', f'pip-source = ["https://u:{CANARY}@h"]',
    f'pip-source = "https://u:{CANARY}@h', f'cluster = "user:{CANARY}@h"', f'token = "{CANARY}"',
    f'roots = ["https://u:{CANARY}@h"]', f'[cluster]\nhosts = ["user:{CANARY}@h"]',
    f'[cluster]\nhosts = ["h"]\ngateway = "u:{CANARY}@h"', f'[cluster]\nhosts = ["h"]\npassword = "{CANARY}"',
]  # fmt: skip
FILES = [
    ("test_conf.py", f'CASES = {{"{CASE}": ""}}\nACCE_CONTAINER_OPT = ["-e", "TOK={CANARY}"]\n'),
    ("test_conf.py", f'CASES = {{"{CASE}": ""}}\nACCE_CONTAINER_OPT = "-e TOK=\'{CANARY}"\n'),
    ("test_conf.py", f'CASES = {{"{CASE}": ""}}\nPIP_SOURCE = "https://u:p/{CANARY}@h"\n'),
    ("host.yaml", f'NPROC_PER_NODE: 8\nACCE_CONTAINER_OPT: [-e, "TOK={CANARY}"]\n'),
    ("host.yaml", f'ACCE_CONTAINER_OPT: "-e TOK={CANARY}\n'),
    ("cluster_conf.py", f'HOSTS = ["user:{CANARY}@h"]\n'),
    ("vendors/cpu/vendor.toml", VENDOR_TOML.replace('"fast"', f'"{CANARY}"')),
    ("vendors/cpu/vendor.toml", VENDOR_TOML.replace('"fast"', f'"{CANARY}')),
    ("vendors/cpu/vendor.toml", VENDOR_TOML.replace('"1g"]', f'"1g", "-e", "TOK={CANARY}"]')),
    ("vendors/cpu/vendor.toml", VENDOR_TOML.replace("[chips", f'[images]\nplain = "u:{CANARY}@r/i"\n[chips', 1)),
    ("vendors/cpu/alpha-plain/config/environment_variables.sh", f"export TOK={CANARY}\n"),
    ("vendors/cpu/alpha-plain/config/config_CPUx1x1.py", f'access_token = "{CANARY}"\n'),
    ("vendors/cpu/alpha-plain/config/requirements.txt", f"--extra-index-url https://u:p/{CANARY}@h/simple\n"),
    ("vendors/cpu/alpha-plain/config/requirements.txt", f"pkg @ https://u:p@{CANARY}@h/p.whl\n"),
    ("vendors/cpu/alpha-plain/config/requirements.txt", f"--config-settings token={CANARY}\n"),
]
HARMLESS: Mapping[str, Any] = {
    "cluster": "bench@h1,n2=h2:2222,[fe80::1]:22",
    "image": "registry.example:5000/maker/plain:1@sha256:0a",
    "set": ["note=a b", "max_steps=5"],
}


def output_with(root: Path, options: Mapping[str, Any]) -> str:
    """Return what a run prints with each runtime, and check that its files hold nothing secret."""
    output = [start_run(root, {"runtime": runtime, **options}, begin=True) for runtime in ("docker", "host")]
    assert files_with(root / "reports", CANARY) == []
    return "\n".join(output)


@pytest.mark.parametrize("text", CONTAINER_OPTIONS)
def test_a_container_option_keeps_the_names_of_its_variables_alone(tmp_path: Path, text: str) -> None:
    root = make_tree(tmp_path)
    set_options(root, container_opt=[text, "--memory 64g"])
    assert CANARY not in output_with(root, {})
    settings = read_settings({}, root)
    assert text in settings.container_opt
    assert CANARY not in settings.as_written("container_opt") + repr(settings)


@pytest.mark.parametrize("text", ADDRESSES)
def test_an_address_is_kept_without_user_password_and_query(tmp_path: Path, text: str) -> None:
    root = make_tree(tmp_path)
    set_options(root, pip_source=text)
    assert CANARY not in output_with(root, {})
    assert read_settings({}, root).pip_source == text
    assert CANARY not in addresses.redacted(text)
    assert any(CANARY in secret for secret in addresses.secrets_in(text)) or "://" not in text


@pytest.mark.parametrize("options", [*OTHERS, *({"cluster": text} for text in HOSTS)], ids=str)
def test_other_options_are_refused_or_stored_without_what_is_secret(tmp_path: Path, options: Mapping[str, Any]) -> None:
    output = output_with(make_tree(tmp_path), options)
    assert CANARY not in output
    assert "cluster" not in options or ("--cluster=" in output and "passwords are not allowed" in output)


@pytest.mark.parametrize(("name", "text"), [*FILES, *(("flagperf.toml", text) for text in SETTINGS_FILES)])
def test_files_of_the_tree_are_read_without_showing_their_secrets(tmp_path: Path, name: str, text: str) -> None:
    root = make_tree(tmp_path)
    (root / name).write_text(text)
    option = {"test_conf.py": "test_conf", "cluster_conf.py": "cluster_conf", "host.yaml": "test_conf"}.get(name)
    options = {option: str(root / name)} if option else {}
    assert CANARY not in output_with(root, options)
    assert CANARY not in output_with(
        root, {**options, "scale": "reference", "throughput_only": True, "synthetic": True}
    )


def test_a_command_line_is_stored_without_what_is_secret(tmp_path: Path) -> None:
    options = {"set": [f"note={text}" for text in ADDRESSES if "://" in text], "nodes": "1x1", "synthetic": True}
    options |= {"throughput_only": False, "cluster": HOSTS[0], "container_opt": CONTAINER_OPTIONS[:1]}
    settings = read_settings(options, make_tree(tmp_path))
    chosen = Namespace(file_or_dir=["suites/alpha", f"{tmp_path}/test_a.py::test[x]"], keyword="a and b", token=CANARY)
    words = shown_command(chosen, settings)
    assert CANARY not in " ".join(words)
    # The control: what is harmless is there.
    harmless = ["--nodes=1x1", "--synthetic", "--no-throughput-only"]
    assert {*chosen.file_or_dir, "-k", "a and b", *harmless} <= {*words}


def test_every_option_with_secrets_declares_its_public_part_and_no_line_has_a_password() -> None:
    for text in ADDRESSES:
        line = f"error: {text} cannot be reached"
        for secret in sorted(addresses.secrets_in(text), key=len, reverse=True):
            line = line.replace(secret, addresses.HIDDEN)
        assert CANARY not in line or "://" not in text
    kept = {option.key for option in OPTIONS if option.may_be_stored("https://u:p@h")}
    assert kept - {option.key for option in OPTIONS if option.path or option.choices or option.flag} == {
        "vendor", "hw", "nodes", "repeat", "case", "engine", "shm_size", "sample", "lease_time", "restarts",
        "restart_wait", "fewest_hosts", "drill", "min_goodput",
    }  # fmt: skip


def test_harmless_values_are_stored_as_they_were_given(tmp_path: Path) -> None:
    root = make_tree(tmp_path)
    assert "docker runtime" in start_run(root, {**HARMLESS, "runtime": "docker"}, begin=True)
    stored = next(root.glob("reports/*/options.json"))
    asked = json.loads(stored.read_text())
    assert {key: asked[key] for key in HARMLESS} == HARMLESS
    assert "continuing" in start_run(root, {"resume": str(stored.parent)})


def test_the_settings_of_the_site_are_read_from_their_file_again(tmp_path: Path) -> None:
    root = make_tree(tmp_path)
    set_options(root, container_opt=[f"-e TOK={CANARY}"], lease_time=2, vendor="cpu")
    start_run(root, {}, begin=True)
    stored = next(root.glob("reports/*/options.json"))
    assert json.loads(stored.read_text()).keys() == {"vendor", "case"}
    set_options(root, lease_time=3)
    stored.write_text(json.dumps({**json.loads(stored.read_text()), "lease_time": 4}))
    settings = read_settings(with_stored_options({"resume": str(stored.parent)}, root), root)
    assert (settings.lease_time, settings.sources["lease_time"]) == (3, str(root / "flagperf.toml"))
    assert "continuing" in start_run(root, {"resume": str(stored.parent)})


def test_an_installer_gets_the_whole_address_and_objects_do_not_print_it() -> None:
    for address in ("https://h:8080/simple/", "file:///x/y", "git+https://h/x#egg=pkg", "https://h/p.whl#sha256=0a"):
        assert addresses.redacted(address) == address
        assert addresses.secrets_in(address) == set()
    image = Image(options=("-e", f"TOK={CANARY}"))
    request = RuntimeRequest("plain", pip_source=f"https://u:{CANARY}@h", environment=(("TOK", CANARY),), image=image)
    assert CANARY not in repr(request)
    assert "plain" in repr(request)


@pytest.mark.slow
def test_a_real_run_with_every_kind_of_secret_stores_none(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JENKINS_URL", "https://ci.example")
    monkeypatch.setenv("GIT_URL", f"https://u:{CANARY}@git.example/x")
    monkeypatch.setenv("FLAGPERF_TOKEN", CANARY)
    set_options(toy.root, container_opt=[*CONTAINER_OPTIONS, "--memory 64g"], pip_source=ADDRESSES[1])
    arguments = ["suites/alpha", "-v", "-k", "converges", "--nodes=1x1", "--set=step_s=0.01"]
    result = toy.run(*arguments)
    assert result.ret == 0
    assert CANARY not in result.stdout.str() + result.stderr.str()
    (run,) = toy.runs
    assert files_with(run, CANARY) == []
    command = json.loads((run / "results.json").read_text())["run"]["command"]
    # The control: what is harmless is there, in the page too.
    assert {"-k", "converges", "--nodes=1x1", "--set=step_s=0.01"} <= set(command)
    page = (run / "report.html").read_text()
    assert "https://***@git.example/x" in page
    assert "--set=step_s=0.01" in page
    for command_line in (
        ["report", str(run)],
        ["show", str(run)],
        ["bundle", str(run), "--incomplete", "--to", "b.tgz"],
    ):
        main(command_line)
    assert files_with(run, CANARY) == []
    again = toy.run(*arguments, f"--resume={run}")
    assert again.ret == 0
    assert files_with(run, CANARY) == []
