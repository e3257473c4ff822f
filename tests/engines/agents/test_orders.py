"""The cores of each rank: their choice, their record, and the binding."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_flagperf.catalog import Catalog
from pytest_flagperf.engines import OK, WARN, Finding
from pytest_flagperf.engines.agents.agents import Agents, Leased
from pytest_flagperf.engines.agents.agents_engine import AgentsEngine
from pytest_flagperf.engines.agents.drill import refuse_drill
from pytest_flagperf.engines.agents.run_round import RoundOptions, RoundOrders
from pytest_flagperf.hosts.local import LocalHost
from pytest_flagperf.problems import Problems
from pytest_flagperf.runtime import Interpreter
from tests.engines.agents.test_engine import engine_of
from tests.helpers.rounds import tiny_plan

CPU = Catalog.scan([Path(__file__).resolve().parents[3]]).vendors["cpu"]
NODES = {0: range(4), 1: range(4), 2: range(4, 8), 3: range(4, 8)}


def cores(devices: Sequence[int], *, device: str = "acme", cpus: Sequence[int] = range(8), **options: Any) -> Any:
    agent: Any = SimpleNamespace(name="h", leased=Leased("/x", cpus=tuple(cpus), devices=tuple(devices)))
    return RoundOrders(tiny_plan(device=device), 1, {}, agents_of(agent), {}, RoundOptions(**options)).cores(agent)


@pytest.mark.parametrize("device", sorted({names.device for names in CPU.toml.framework.values()}))
def test_on_cpus_a_rank_is_bound_to_its_leased_core(device: str) -> None:
    assert cores([0, 3], device=device, cpus=[0, 2, 4, 6, 1]) == ((0,), (6,))
    assert cores([0, 5], device=device, cpus=[0, 2]) == ()  # more cards than cores


def test_ranks_are_bound_to_the_cores_near_their_devices_or_not_at_all() -> None:
    near = {"h": NODES}
    assert cores([1, 2], near=near) == (tuple(range(4)), tuple(range(4, 8)))
    assert cores([1, 9], near=near) == (tuple(range(4)), ())
    assert cores([1, 2], near=near, cpus=[0, 1]) == ((0, 1), ())  # only cores that the agent may use
    assert cores([1, 2], near={"another": NODES}) == cores([1, 2]) == cores([8, 9], near=near) == ()
    assert cores([0, 1], near={"h": NODES}, bind=False) == cores([0, 1], device="cpu", bind=False) == ()


@pytest.mark.parametrize(
    ("device", "near", "threads"),
    [("acme", {}, 4), ("acme", {"h": NODES}, 2), ("cpu", {}, 1), ("CPU", {}, 1)],
    ids=["any core", "two on one node", "a core each", "a core each, in other frameworks"],
)
def test_threads_fit_the_cores(device: str, near: Mapping[str, Any], threads: int) -> None:
    python = {"h": Interpreter("python3")}
    start = RoundOrders(tiny_plan(device=device), 1, {}, agents_of(agent_on("h")), python, RoundOptions(near=near))
    assert start.placement().threads_per_rank == threads


def agents_of(*agents: Any) -> Agents:
    made = Agents()
    made.all.extend(agents)
    return made


def agent_on(name: str) -> Any:
    lease = Leased(f"/rounds/{name}", "/staged/code", tuple(range(8)), 29999, devices=(0, 1))
    return SimpleNamespace(name=name, noderank=0, host=SimpleNamespace(address=f"{name}.cluster"), leased=lease)


def test_an_order_has_the_variables_of_its_ranks_and_of_their_hosts_python() -> None:
    python = Interpreter("python3", env={"LD_LIBRARY_PATH": "/lib"}, path=("/packages",))
    start = RoundOrders(tiny_plan(), 1, {}, agents_of(agent_on("h0")), {"h0": python}, RoundOptions())
    env = start.placement_and_orders()[1][0]["ranks"][0]["env"]
    assert (env["LD_LIBRARY_PATH"], env["RANK"], env["MASTER_PORT"]) == ("/lib", "0", "29999")
    assert env["PYTHONPATH"].split(":")[-1] == "/packages"


def test_only_the_first_agent_of_a_repeated_training_gets_the_secret_of_its_order() -> None:
    def secrets(training: str, **replay: Any) -> list[int | None]:
        plan = replace(tiny_plan(nnodes=2), replay=replay)
        agents = [agent_on("h0"), agent_on("h1")]
        agents[1].noderank = 1
        start = RoundOrders(
            plan, 1, {"token": "", "training": training}, agents_of(*agents),
            {agent.name: Interpreter("python") for agent in agents}, RoundOptions(),
        )  # fmt: skip
        placement, orders = start.placement_and_orders()
        first = orders[0]["order_secret"]
        assert first is None or str(first) not in json.dumps([start.plan_json(placement, orders), orders[0]["files"]])
        return [order["order_secret"] for order in orders]

    [secret, none] = secrets("one", states="/states")
    assert none is None
    assert secrets("one", states="/states") == [secret, None], "a later start continues with the same order"
    assert secrets("two", states="/states")[0] not in (secret, None)
    assert secrets("one") == secrets("one", states="/states", segments=[[1, 2]]) == [None, None]


def test_findings_of_preflight_are_known_to_all_workers_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Finding("h1", "numa", OK, "", near=((0, (0, 1)), (1, (2, 3))))
    monkeypatch.setattr(AgentsEngine, "_findings", lambda *_: [seen])
    first, second = (engine_of(tmp_path, LocalHost("h1")) for _ in range(2))
    first.prepare([])
    second.leave_out(json.loads(json.dumps(first.leave_out())))
    assert [list(second._near["h1"][device]) for device in (0, 1)] == [[0, 1], [2, 3]]


def test_a_drill_is_refused_where_others_use_the_cores_or_a_device() -> None:
    refuse_drill([Finding("h1", "load", OK, "idle"), Finding("h1", "memory", WARN, "little")])
    with pytest.raises(Problems) as caught:
        refuse_drill(
            [Finding("h1", "load", WARN, "busy"), Finding("h2", "foreign processes", WARN, "device 0 is in use")]
        )
    assert [problem.split(";")[0] for problem in caught.value.problems] == [
        "--drill: h1: busy", "--drill: h2: device 0 is in use",
    ]  # fmt: skip
