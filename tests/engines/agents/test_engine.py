"""The engine: requirements on hosts before a run, environments, and resuming a round with unreachable hosts."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog, Vendor
from pytest_flagperf.engines.agents import agents_engine, environments
from pytest_flagperf.engines.agents.agents import Agents, HostAgent, Leased, Started
from pytest_flagperf.engines.agents.agents_engine import AgentsEngine
from pytest_flagperf.engines.agents.allocation import FixedHosts
from pytest_flagperf.engines.agents.environments import runtime_request
from pytest_flagperf.hosts import Host, HostError
from pytest_flagperf.hosts.host_pool import HostPool
from pytest_flagperf.hosts.local import LocalHost
from pytest_flagperf.plan import Plan, PlanRequest, describe, make_plan
from pytest_flagperf.problems import Problems
from pytest_flagperf.runtime import BuildFailed, EngineRequirements, Image, Interpreter, RuntimeSetupError
from pytest_flagperf.runtime.requirements import union
from pytest_flagperf.settings import read_settings
from pytest_flagperf.stored.round_dir import RoundFault, RoundRecord
from tests.engines.agents.test_agents import FakeChannel
from tests.helpers.rounds import Away, tiny_plan
from tests.helpers.trees import VENDOR_TOML, tree, write, write_suite, write_vendor

SIXTEEN = VENDOR_TOML.replace("devices_per_host = 8", "devices_per_host = 16")
BLIND = SIXTEEN.replace("visible_devices", "# visible_devices")
"""A vendor whose processes always see all devices."""
BY_DEVICE = "[container]\noptions = ['--device', '/dev/acme{device}']\n"


@pytest.fixture
def round_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "alpha_plain_CPU_2_1_1" / "round1"
    directory.mkdir(parents=True)
    more = {"log_dir": "/x", "code_root": "/x", "devices": [0], "clock_offset_s": 0.0}
    hosts = [{"name": name, "noderank": rank, **more} for rank, name in enumerate(("h1", "h2"))]
    plan = {**tiny_plan(nnodes=2).to_json(), "round": 1, "seed": 42, "hosts": hosts}
    (directory / "plan.json").write_text(json.dumps(plan))
    return directory


def engine_of(root: Path, *hosts: Host, **given: Any) -> AgentsEngine:
    return AgentsEngine(read_settings(given, root), tree(root), FixedHosts(pool=HostPool(hosts)))


def toy_plan(catalog: Catalog, runtime: str) -> Plan:
    case = Case.parse("toy:pytorch:X9:1:8:1")
    return make_plan(catalog, PlanRequest(case, vendor="acme", runtime=runtime, synthetic=True))


def test_logs_on_unreachable_hosts_are_reported(round_dir: Path, notes: list[str]) -> None:
    agents_engine = engine_of(round_dir.parents[1], Away("h1"), Away("h2"))
    assert not agents_engine.resume(round_dir)
    assert [line.strip() for line in notes] == [
        f"alpha_plain_CPU_2_1_1 round1: the logs of {name} are missing here: {name}: no answer" for name in ("h1", "h2")
    ]
    assert agents_engine._pool.usable == ()


@pytest.mark.parametrize("attached", [True, False])
def test_agents_keep_their_logs_if_another_is_not_attached_or_not_started(
    attached: bool, round_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = FakeChannel()

    def attach_agent(host: Host, *_: Any) -> HostAgent:
        if host.name == "h2" and not attached:
            raise HostError("h2: the agent is not running")
        state = Started("/there") if host.name == "h1" else Leased("/there")
        return HostAgent(host, 0, round_dir, line, 5.0, state=state)

    monkeypatch.setattr(agents_engine, "attach_agent", attach_agent)
    assert not engine_of(round_dir.parents[1], Away("h1"), Away("h2")).resume(round_dir)
    assert line.heard == [{"op": "leave", "remove": False}, *([{"op": "leave", "remove": True}] if attached else [])]


def test_a_resumed_start_gives_up_and_blames_a_lost_host_as_any_other(
    round_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def follow_round(_: Path, agents: Agents, **__: Any) -> RoundRecord:
        assert agents.restarts
        return RoundRecord("failed", RoundFault("lost", "h2", None, "h2 is lost"))

    monkeypatch.setattr(agents_engine, "attach_agent", lambda host, *_: host)
    monkeypatch.setattr(Agents, "join", lambda *_: None)
    monkeypatch.setattr(agents_engine, "follow_round", follow_round)
    engine = engine_of(round_dir.parents[1], *map(Away, ("h1", "h2", "h3")), restarts=1)
    assert engine.resume(round_dir)
    assert [host.name for host in engine._pool.usable] == ["h1", "h3"]


@pytest.mark.parametrize("text", ["", "{}", '{"hosts": [1]}', '{"hosts": [{"name": "h1", "noderank": "0"}]}'])
def test_an_unreadable_plan_is_reported_and_not_resumed(round_dir: Path, text: str, notes: list[str]) -> None:
    (round_dir / "plan.json").write_text(text)
    agents_engine = engine_of(round_dir.parents[1], Away("h1"), Away("h2"))
    assert not agents_engine.resume(round_dir)
    (line,) = notes
    assert "logs that are still on other hosts are not fetched" in line
    assert "plan.json" in line


@pytest.mark.parametrize(
    ("toml", "runtime", "count"),
    [
        (SIXTEEN, "host", 16),
        (BLIND, "host", 8),
        (BLIND, "docker", 8),
        (BLIND + BY_DEVICE, "docker", 16),
        (BLIND + BY_DEVICE, "host", 8),
        (BLIND.replace('"acme"', '"cpu"'), "host", 16),
    ],
)
def test_ranks_that_see_all_devices_lease_the_first_ones(tmp_path: Path, toml: str, runtime: str, count: int) -> None:
    write_vendor(tmp_path, toml=toml)
    agents_engine, plan, _ = planned(tmp_path, runtime)
    assert agents_engine._device_request(plan, tmp_path / "run/case/round1").devices_per_host == count


def test_each_start_of_a_training_has_folders_of_its_own_on_the_hosts(tmp_path: Path) -> None:
    write_vendor(tmp_path, toml=SIXTEEN)
    agents_engine, plan, _ = planned(tmp_path, "host")

    def name(number: int) -> str:
        return agents_engine._device_request(plan, tmp_path / f"run/case/round{number}").name

    first = name(1)
    (tmp_path / "run/case/failed1-round1").mkdir(parents=True)
    assert (name(1), name(2)) == (f"{first}-start2", first.replace("round1", "round2"))


def required_engine(root: Path, runtime: str = "docker", **given: Any) -> EngineRequirements | None:
    agents_engine, plan, _ = planned(root, runtime, **given)
    return agents_engine._host_requirements([plan]).engine


def test_the_image_of_a_vendors_files_is_ours(tmp_path: Path) -> None:
    write(tmp_path, "vendors/acme/images/pytorch/Dockerfile", "FROM base\n")
    engine = required_engine(tmp_path)
    assert engine is not None
    assert engine.image.startswith("flagperf-acme-pytorch:")
    assert engine.image_is_ours


def test_no_image_is_built_that_the_user_sets_or_no_container_needs_and_a_missing_one_is_named(tmp_path: Path) -> None:
    requirements = required_engine(tmp_path, image="somebody/torch:2")
    assert requirements == EngineRequirements("somebody/torch:2", socket="/var/run/docker.sock")
    assert required_engine(tmp_path, "venv") is None
    with pytest.raises(Problems, match=r"case toy:pytorch:X9:1:8:1: no image for pytorch: .*--image"):
        required_engine(tmp_path)


def test_the_source_of_the_image_is_recorded(tmp_path: Path) -> None:
    write(tmp_path, "vendors/acme/images/pytorch/Dockerfile", "FROM base\n")
    agents_engine, plan, vendor = planned(tmp_path)
    assert image_of(agents_engine, plan, vendor).image_source == "vendors/acme/images/pytorch/Dockerfile"
    assert agents_engine.notes(plan.case, vendor, "docker") == []
    write_vendor(tmp_path, toml=VENDOR_TOML + '[images]\npytorch = "maker/torch:1"\npytoch = "maker/torch:2"\n')
    agents_engine, plan, vendor = planned(tmp_path)
    image = image_of(agents_engine, plan, vendor)
    source = "[images] of vendors/acme/vendor.toml"
    assert (image.image, image.image_source, image.folder) == ("maker/torch:1", source, None)
    agents_engine, plan, vendor = planned(tmp_path, image="mine:3", container_opt=("--device /dev/acme{device}",))
    request = agents_engine._environments.request(plan.case, vendor, "docker")
    image = image_of(agents_engine, plan, vendor)
    assert (image.image, image.image_source) == ("mine:3", "--image=mine:3")
    lines = describe(plan, vendor, request=request)
    assert "image     mine:3, of --image=mine:3" in lines
    # Beside the list of the vendor's settings; the container has no devices but the case's.
    assert lines.count("ACME_VISIBLE") == describe(plan, vendor).count("ACME_VISIBLE") - 1


def test_an_extension_that_would_not_be_built_is_reported_before_the_run(tmp_path: Path) -> None:
    write(tmp_path, "vendors/acme/images/pytorch/Dockerfile", "FROM base\n")
    for runtime in ("docker", "host", "venv"):
        agents_engine, plan, vendor = planned(tmp_path, runtime)
        agents_engine.check(plan)
        assert agents_engine.notes(plan.case, vendor, runtime) == []
    write(tmp_path, "vendors/acme/toy-pytorch/csrc/kernel.cu", "")
    agents_engine, plan, vendor = planned(tmp_path, "venv")
    with pytest.raises(Problems, match=r"^vendors/acme/toy-pytorch/csrc has neither setup\.py nor pyproject\.toml"):
        agents_engine.check(plan)
    write(tmp_path, "vendors/acme/toy-pytorch/csrc/setup.py", "")
    agents_engine, plan, vendor = planned(tmp_path, "venv")
    with pytest.raises(Problems, match=r"csrc is built only into images, which --runtime=venv does not use"):
        agents_engine.check(plan)
    for runtime, noted in (("docker", 0), ("host", 1)):
        agents_engine, plan, vendor = planned(tmp_path, runtime)
        agents_engine.check(plan)
        assert len(agents_engine.notes(plan.case, vendor, runtime)) == noted
    (note,) = agents_engine.notes(plan.case, vendor, "host")
    assert note.endswith("with --runtime=host the host's Python must already have it")


def test_container_options_with_an_unclosed_quote_are_a_problem_of_the_check(tmp_path: Path) -> None:
    agents_engine, plan, vendor = planned(tmp_path, image="mine:3", container_opt=("--env 'A=1",))
    assert agents_engine.notes(plan.case, vendor, "docker") == []
    with pytest.raises(Problems, match=r": No closing quotation$"):
        agents_engine.check(plan)


def image_of(agents_engine: AgentsEngine, plan: Plan, vendor: Vendor) -> Image:
    image = agents_engine._environments.request(plan.case, vendor, "docker").image
    assert image is not None
    return image


def planned(root: Path, runtime: str = "docker", **given: Any) -> tuple[AgentsEngine, Plan, Vendor]:
    write_suite(root)
    write(root, "vendors/acme/toy-pytorch/config/config_X9x1x8.py", "")
    if not (root / "vendors/acme/vendor.toml").exists():
        write_vendor(root)
    catalog = Catalog.scan([root])
    plan = toy_plan(catalog, runtime)
    return AgentsEngine(read_settings(given, root), catalog, FixedHosts()), plan, catalog.vendor("acme")


class Builds:
    """A runtime whose build fails on one host; it counts the tries on each host."""

    takes_python = uses_images = False

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: RuntimeSetupError) -> None:
        self.tries: Counter[str] = Counter()
        self.checks, self.unchanged = 0, True
        self.error = error
        monkeypatch.setattr(environments, "runtimes", lambda: {"host": self})

    def prepare(self, host: Host, *_: object) -> Interpreter:
        self.tries[host.name] += 1
        if host.name == "h2":
            raise self.error
        return Interpreter("python3")

    def is_unchanged(self, *_: object) -> bool:
        self.checks += 1
        return self.unchanged


def three_hosts(root: Path, nnodes: int) -> tuple[AgentsEngine, Plan]:
    agents_engine = engine_of(root, *map(LocalHost, ("h1", "h2", "h3")))
    plan = toy_plan(Catalog.scan([root]), "host")
    return agents_engine, replace(plan, case=replace(plan.case, nnodes=nnodes))


@pytest.mark.parametrize("error", [BuildFailed("h2: could not be built"), RuntimeSetupError("h2: no process listens")])
def test_a_host_with_a_failed_build_is_left_out_if_others_stay_and_a_temporary_problem_is_tried_again(
    error: RuntimeSetupError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: list[str]
) -> None:
    builds = Builds(monkeypatch, error)
    agents_engine, plan = three_hosts(tmp_path, nnodes=2)
    for _ in range(2):
        agents_engine._environments.build_ahead(plan, agents_engine._pool)
    failed = isinstance(error, BuildFailed)
    assert [host.name for host in agents_engine._pool.usable] == (["h1", "h3"] if failed else ["h1", "h2", "h3"])
    assert [line.strip() for line in notes] == ["left out: h2: could not be built"] * failed
    assert builds.tries == {"h1": 1, "h2": 1 if failed else 2, "h3": 1}


def test_with_too_few_hosts_the_failed_build_is_the_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds = Builds(monkeypatch, BuildFailed("h2: could not be built"))
    agents_engine, plan = three_hosts(tmp_path, nnodes=3)
    for _ in range(3):
        with pytest.raises(Problems, match=r"^h2: could not be built$"):
            agents_engine._environments.build_ahead(plan, agents_engine._pool)
    assert builds.tries == {"h1": 1, "h2": 1, "h3": 1}
    assert len(agents_engine._pool.usable) == 3


def test_a_changed_environment_is_prepared_before_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds = Builds(monkeypatch, RuntimeSetupError("h2: no process listens"))
    agents_engine, plan = three_hosts(tmp_path, nnodes=1)
    prepared = agents_engine._environments
    host = agents_engine._pool.usable[0]
    prepared.build_ahead(plan, agents_engine._pool)
    prepared.interpreters(plan, [host])
    assert builds.checks == 0, "nothing ran since it was built"
    prepared.interpreters(plan, [host])
    assert (builds.tries["h1"], builds.checks) == (1, 1)
    builds.unchanged = False
    prepared.interpreters(plan, [host])
    assert (builds.tries["h1"], builds.checks) == (2, 2)


def required(catalog: Catalog, model: str, vendor: str = "acme", runtime: str = "venv") -> list[str]:
    case = Case.parse(f"{model}:pytorch:X9:1:1:1")
    request = runtime_request(read_settings({}, Path("/")), catalog, case, catalog.vendor(vendor), runtime)
    return [line.text for line in union(request.requirements)]


def test_suites_share_an_environment_while_their_pins_agree(tmp_path: Path) -> None:
    tree(tmp_path)
    for model, lines in {"toy": "frame==1\nextra", "two": "frame==1", "three": "frame>=1"}.items():
        write(write_suite(tmp_path, model), "requirements.txt", lines)
    write(write_suite(tmp_path, "toy", "paddle"), "requirements.txt", "frame==7")
    catalog = Catalog.scan([tmp_path])
    for model in ("toy", "two", "three"):
        assert sorted(required(catalog, model)) == ["extra", "frame==1", "frame>=1"]
    assert required(catalog, "two", runtime="host") == ["frame==1"], "an installed Python may lack others' packages"
    # A suite with other pins, and each that it conflicts with, have their own; the other suites still share one.
    write(write_suite(tmp_path, "old"), "requirements.txt", "extra<=2\nframe==1.0.0\nmore==1")
    write(write_suite(tmp_path, "new"), "requirements.txt", "more==2")
    catalog = Catalog.scan([tmp_path])
    assert required(catalog, "old") == ["extra<=2", "frame==1.0.0", "more==1"]
    assert required(catalog, "new") == ["more==2"]
    assert sorted(required(catalog, "toy")) == sorted(required(catalog, "two")) == ["extra", "frame==1", "frame>=1"]


def test_a_case_whose_vendors_pins_conflict_with_another_suite_has_its_own_environment(tmp_path: Path) -> None:
    tree(tmp_path)
    write(tmp_path, "suites/toy/pytorch/requirements.txt", "frame==1")
    write(write_suite(tmp_path, "two"), "requirements.txt", "part==1")
    write(tmp_path, "vendors/acme/toy-pytorch/config/requirements.txt", "part==2")
    catalog = Catalog.scan([tmp_path])
    assert required(catalog, "toy") == ["frame==1", "part==2"]
    assert sorted(required(catalog, "two")) == ["frame==1", "part==1"]
    # The control: a conflict within the case has no solution.
    write(tmp_path, "vendors/acme/toy-pytorch/config/requirements.txt", "frame==2")
    with pytest.raises(RuntimeSetupError, match=r"frame==1\n.*frame==2"):
        required(catalog, "toy")
