"""How roles are started, and what engines and masters say, without any of them."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest

from chaos.errors import HarnessError, NotHere
from chaos.systems.base import ClusterSpec, Process
from chaos.systems.engines import Engines, engine_settings
from chaos.systems.mooncake import layout, ports
from chaos.systems.mooncake.commands import Commands
from chaos.systems.mooncake.engines_over import EnginesOver
from chaos.systems.mooncake.masters import Masters
from chaos.systems.mooncake.package import Package
from chaos.systems.mooncake.plan import VARIABLE, ClientPlan
from chaos.systems.mooncake.scraper import Scraper
from chaos.systems.mooncake.shape import shape_of

PACKAGE = Package(directory=Path("/m"), version="1", build="b")


def address(role: str, plane: str = "control", rail: int = 0) -> str:
    kind, _, number = role.partition("-")
    first = {"master": 2, "store": 10, "engine": 200, "etcd": 8}.get(kind, 1)
    return f"127.9.9.{first + int(number or 0)}"


def here(local: bool = True, placement: str = "local_first", **own) -> layout.Addresses:
    env = {"MC_TCP_LANES_PER_PEER": 2}
    overrides = {"mooncake": {"profile": "tuned", **own}, "env": env}
    spec = ClusterSpec(stores=2, engines=1, overrides=overrides, placement=placement)
    shape = shape_of(spec)
    return layout.Addresses(
        shape=shape,
        address=address,
        ports=ports.fixed(layout.wanted(shape)),
        local=local,
    )


def commands(token: str = "", **shape) -> Commands:
    where = here(**shape)
    engines = Engines(
        service=where.service,
        admin=where.door,
        settings=engine_settings(where.shape.spec),
    )
    return Commands(
        package=PACKAGE,
        here=where,
        engines=engines,
        python=lambda role: "/python",
        scratch=lambda: Path("/scratch"),
        token=token,
    )


def test_an_engine_has_mooncake_for_its_pool_and_a_store_beside_it() -> None:
    argv = commands().argv("engine-0")
    told = dict(itertools.pairwise(argv))

    assert told["--storage"] == "mooncake"
    assert told["--mooncake-master"] == "127.9.9.200:17000"
    assert told["--mooncake-admin"] == "127.9.9.200:17001"
    assert told["--mooncake-host"] == "127.9.9.200"
    assert told["--mooncake-near-host"] == "127.9.9.10"


def test_an_engine_spreads_its_pages_where_the_placement_is_random() -> None:
    argv = commands(placement="random").argv("engine-0")
    told = dict(itertools.pairwise(argv))

    assert told["--mooncake-near"] == "false"
    assert "--mooncake-near" not in commands().argv("engine-0")


def test_on_hosts_nothing_stands_before_the_master_and_agents_end_what_runs() -> None:
    argv = commands(local=False).argv("engine-0")
    told = dict(itertools.pairwise(argv))

    assert told["--mooncake-master"] == "127.9.9.2:50051"
    assert "--die-with-parent" not in argv


@pytest.mark.parametrize("role", ["master", "store-1", "engine-0", "etcd"])
def test_every_role_here_dies_with_us(role) -> None:
    argv = commands(masters=2).argv(role)

    assert argv[:3] == ["/python", "-I", "-S"]
    assert "--die-with-parent" in argv[: argv.index("--")]


def test_only_stores_give_their_address_randomisation_up() -> None:
    found = {
        r: "--no-aslr" in commands(aslr=False).argv(r) for r in ("store-0", "master")
    }

    assert found == {"store-0": True, "master": False}


def test_a_store_that_keeps_its_name_is_told_it() -> None:
    argv = commands(aslr=False, metadata="http").argv("store-1")

    assert argv[-4] == "127.9.9.11:50152"
    assert argv[-1] == "http://127.9.9.2:8080/metadata"


def test_stores_and_engines_have_the_profile_s_variables_and_bind_one_address() -> None:
    here = commands()

    for role, host in (("store-1", "127.9.9.11"), ("engine-0", "127.9.9.200")):
        env = here.env(role)
        assert env["MC_RPC_TIMEOUT_MS"] == "1000"
        assert env["MC_TCP_LANES_PER_PEER"] == "2"
        assert env["MC_TCP_BIND_ADDRESS"] == host
    assert "MC_RPC_TIMEOUT_MS" not in here.env("master")


def test_with_a_metadata_server_a_store_has_one_name_for_ever() -> None:
    drawn = commands().env("store-1")
    fixed = [commands(metadata="http").env(f"store-{number}") for number in (0, 1)]

    assert "MC_STORE_CLIENT_MIN_PORT" not in drawn
    lows, highs = (
        [env[f"MC_STORE_CLIENT_{end}_PORT"] for env in fixed] for end in ("MIN", "MAX")
    )
    assert lows == highs
    assert len(set(lows)) == 2
    assert all(int(port) < 32_768 for port in lows)


def test_a_probe_that_is_a_role_has_its_plan_and_the_token_by_environment() -> None:
    env = commands(token="secret", local=False).env("probe")

    assert ClientPlan.from_json(env[VARIABLE]).master == "127.9.9.2:50051"
    assert env["MOONQUAKE_PROBE_TOKEN"] == env["REFIMPL_TOKEN"] == "secret"


class FakeDoor:
    """A master that says what it was given, or is silent."""

    def __init__(self, role="leader", segments=(), used=0, **numbers):
        self._role, self._segments, self._used = role, segments, used
        self._numbers = numbers

    def role(self):
        return self.text("/role")

    def text(self, path):
        if self._role == "silent":
            raise HarnessError("no answer")
        return self._role

    def segments(self):
        self.text("")
        return list(self._segments)

    def used_bytes(self, segment):
        return self._used

    def metrics(self):
        self.text("")
        return dict(self._numbers)

    def state(self):
        return {"role": self.text("")}

    def snapshot(self):
        return {"role": self._role}


def masters(*doors: FakeDoor, **own) -> Masters:
    found = Masters(
        here(masters=max(1, len(doors)), **own),
        lambda role: Process(role=role, pid=1, start_ticks=1),
    )
    found.doors = dict(zip(found.doors, doors, strict=True))
    return found


def test_the_leader_is_the_one_that_says_so() -> None:
    assert masters(FakeDoor("standby"), FakeDoor("leader")).leader() == "master-1"
    assert masters(FakeDoor("standby"), FakeDoor("silent")).leader() == ""


def test_stores_are_mounted_by_the_names_of_their_segments() -> None:
    told = masters(FakeDoor(segments=["127.9.9.11:50252", "10.0.0.1:1"], used=7))

    assert told.mounted() == {"store-1"}
    assert told.owned_bytes() == {"store-1": 7}


def test_nobody_is_mounted_while_no_master_answers() -> None:
    assert masters(FakeDoor("silent")).mounted() == set()


def test_bytes_without_an_object_break_a_law() -> None:
    good = masters(FakeDoor(master_key_count=1, master_allocated_bytes=9))
    bad = masters(FakeDoor(master_key_count=0, master_allocated_bytes=9))

    assert good.broken_laws() == []
    assert bad.broken_laws() == ["master: 9 bytes are allocated for no object"]
    assert not bad.empty()


def test_what_a_master_does_not_tell_is_not_here() -> None:
    state = masters(FakeDoor()).state("master", "1.2")

    assert state["version"] == "1.2"
    with pytest.raises(NotHere, match="counters"):
        _ = state["counters"]


def over(**doors) -> EnginesOver:
    where = here()
    fake = SimpleNamespace(
        ask=lambda engine, method, path, body="": doors[path],
        control=lambda engine, op: doors["state"],
        broken_laws=lambda engine: doors.get("laws", []),
    )
    return EnginesOver(
        fake,
        where.engines,
        where.client(),
        asker=lambda: None,
        process=lambda role: Process(role=role, pid=1, start_ticks=1),
        remote=False,
    )


def test_an_engine_s_state_names_stores_wherever_addresses_stand() -> None:
    state = {"q": {"127.9.9.11:15001": ["127.9.9.10:15002", "10.0.0.1:5", "a:b:c"]}}

    assert over(state=state).engine_state("engine-0") == {
        "q": {"store-1": ["store-0", "10.0.0.1:5", "a:b:c"]}
    }


@pytest.mark.parametrize(
    ("connected", "segments", "reached"),
    [(True, {"a:1": "s"}, True), (True, {}, False), (True, None, False),
     (False, {"a:1": "s"}, False)],
)  # fmt: skip
def test_an_engine_reaches_the_pool_with_a_client_and_segments(
    connected, segments, reached
) -> None:
    client = {"connected": connected, "segments": segments}

    assert over(**{"/state": {"client": client}}).connected("engine-0") is reached


def test_an_engine_that_does_not_answer_has_not_reached_the_pool() -> None:
    def silent(*_args, **_more):
        raise HarnessError("engine-0 does not answer")

    engines = over()
    engines._engines.ask = silent

    assert not engines.connected("engine-0")


def test_a_broken_law_has_the_engine_s_name() -> None:
    assert over(laws=["pages leak"]).broken_laws() == ["engine-0: pages leak"]


@pytest.mark.parametrize(
    ("role", "name"), [("master", "master.put_start"), ("engine-0", "client.read")]
)
def test_a_failpoint_that_nothing_would_hit_is_not_here(role, name) -> None:
    with pytest.raises(NotHere):
        over().set_failpoint(role, name, "on")


def test_a_failpoint_of_hicache_is_the_engine_s() -> None:
    hits = over(**{"/failpoints": {"hicache.before_get": {"hits": 3}}})

    assert hits.failpoint_hits("engine-0", "hicache.before_get") == 3


def test_a_scraper_tells_changes_only() -> None:
    told = []
    door = FakeDoor()
    scraper = Scraper({"master": door})
    scraper._sink = lambda role, value: told.append((role, value["role"]))
    for role in ("leader", "leader", "silent"):
        door._role = role
        scraper.read()

    assert told == [("master", "leader"), ("master", "silent")]
    scraper.close()
