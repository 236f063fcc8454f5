"""The dynamic storage backend, driven as SGLang drives one; SGLang is not needed."""

from __future__ import annotations

import importlib.util
import socket
import sys
from pathlib import Path

import pytest

from refimpl.compat.page_storage import PageStorage
from refimpl.core.breaker import BreakerSettings, BreakerState
from refimpl.core.codes import Code

spec = importlib.util.spec_from_file_location(
    "moonquake_sglang_standin", Path(__file__).with_name("sglang_standin.py")
)
standin = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = standin
spec.loader.exec_module(standin)


@pytest.fixture
def sglang(monkeypatch):
    """SGLang as far as a backend sees it, and our backend not imported before."""
    for name, module in standin.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "refimpl.compat.sglang", raising=False)
    yield standin
    sys.modules.pop("refimpl.compat.sglang", None)


@pytest.fixture
def config(pool, request):
    def make(extra=None, **fields):
        extra_config = {
            "backend_name": "moonquake",
            "module_path": "refimpl.compat.sglang",
            "class_name": "MoonquakeStorage",
            "interface_v1": 1,
            "master": pool.master,
            "tag": request.node.name,
            **(extra or {}),
        }
        return standin.HiCacheStorageConfig(extra_config=extra_config, **fields)

    return make


@pytest.fixture
def backend(sglang, config, store):
    """Makes backends of ranks, each with a host pool of its own."""
    made = []

    def make(pages=8, extra=None, host_pool=None, **fields):
        host_pool = host_pool or standin.HostPool(pages)
        made.append(standin.create(config(extra, **fields), host_pool))
        return made[-1]

    yield make
    for one in made:
        one.close()


def filled(storage, *pages):
    """Fills and stores these pages under keys of their numbers."""
    host = storage.mem_pool_host
    for page in pages:
        host.fill(page, page + 1)
    keys = [f"hash{page}" for page in pages]
    assert storage.batch_set_v1(keys, host.indices(*pages)) == [True] * len(pages)
    return keys


# --- zero copy ------------------------------------------------------------------------


def test_pages_come_back_where_the_indices_say(backend):
    storage = backend()
    host, keys = storage.mem_pool_host, filled(storage, 0, 1, 2)
    found = storage.batch_get_v1(keys, host.indices(5, 3, 7))

    assert found == [True] * 3
    assert host.page(5) == b"\1" * 96
    assert host.page(3) == b"\2" * 96
    assert host.page(7) == b"\3" * 96


def test_hits_are_a_prefix_without_a_gap(backend):
    storage = backend()
    filled(storage, 0, 1, 3)

    assert storage.batch_exists(["hash0", "hash1", "hash2", "hash3"]) == 2
    assert storage.batch_exists(["hash2", "hash0"]) == 0
    assert storage.batch_exists([]) == 0
    assert storage.exists("hash3")
    assert not storage.exists("hash2")


def test_a_missing_page_is_false_alone(backend):
    storage = backend()
    filled(storage, 0, 2)
    found = storage.batch_get_v1(
        ["hash0", "hash1", "hash2"], storage.mem_pool_host.indices(4, 5, 6)
    )

    assert found == [True, False, True]


def test_writing_a_page_twice_succeeds(backend):
    storage = backend()
    filled(storage, 0)

    assert filled(storage, 0, 1) == ["hash0", "hash1"]


def test_a_page_of_another_size_is_no_hit(backend, pool):
    storage = backend()
    host, keys = storage.mem_pool_host, filled(storage, 0)
    other = backend(host_pool=standin.HostPool(8, page_bytes=128))

    assert other.batch_get_v1(keys, other.mem_pool_host.indices(0)) == [False]
    assert storage.batch_get_v1(keys, host.indices(1)) == [True]


def test_memory_outside_of_the_host_pool_is_not_touched(backend):
    storage = backend()
    host, keys = storage.mem_pool_host, filled(storage, 0)
    stray = standin.Tensor(96)
    host.get_page_buffer_meta = lambda _indices: (
        [stray.data_ptr(), stray.data_ptr() + 48],
        [48, 48],
    )

    assert storage.batch_get_v1(keys, host.indices(1)) == [False]
    assert bytes(stray) == bytes(96)


# --- whose pages ----------------------------------------------------------------------


def test_ranks_do_not_read_each_others_halves(backend):
    one, two = backend(tp_rank=0, tp_size=2), backend(tp_rank=1, tp_size=2)
    keys = filled(one, 0, 1)

    assert two.batch_exists(keys) == 0
    assert backend(tp_rank=0, tp_size=2).batch_exists(keys) == 2
    assert backend(tp_rank=0, tp_size=4).batch_exists(keys) == 0


def test_ranks_of_a_latent_attention_model_share_pages(backend):
    writer = backend(tp_rank=0, tp_size=2, is_mla_model=True)
    keys = filled(writer, 0)

    assert backend(tp_rank=1, tp_size=2, is_mla_model=True).batch_exists(keys) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"model_name": "org/other"},
        {"pp_size": 2},
        {"attn_cp_size": 2},
        {"extra": {"tag": "another"}},
    ],
)
def test_what_shapes_the_bytes_keeps_pages_apart(backend, fields):
    keys = filled(backend(), 0)

    assert backend(**fields).batch_exists(keys) == 0


def test_another_type_of_the_same_size_is_another_page(backend):
    keys = filled(backend(), 0)
    other = standin.HostPool(8)
    other.dtype = "float16"

    assert backend(host_pool=other).batch_exists(keys) == 0


def test_clearing_removes_this_ranks_pages_only(backend, pool):
    one, two = backend(tp_rank=0, tp_size=2), backend(tp_rank=1, tp_size=2)
    keys = filled(one, 0), filled(two, 1)
    pool.outwait_lease()
    one.clear()

    assert one.batch_exists(keys[0]) == 0
    assert two.batch_exists(keys[1]) == 1


# --- several pools --------------------------------------------------------------------


def sidecar(storage, name=standin.PoolName.MAMBA):
    host = standin.HostPool(8, page_bytes=32)
    storage.register_mem_host_pool_v2(host, name)
    return host


def transfer(name, keys, indices=None, policy=standin.PoolHitPolicy.ALL_PAGES):
    return standin.PoolTransfer(
        name=name, keys=keys, host_indices=indices, hit_policy=policy
    )


def test_pools_are_written_and_read_by_name(backend):
    storage = backend()
    host, name = sidecar(storage), standin.PoolName.MAMBA
    host.fill(1, 9)
    wrote = storage.batch_set_v2([transfer(name, ["hash0"], host.indices(1))])
    read = storage.batch_get_v2([transfer(name, ["hash0"], host.indices(2))])

    assert wrote == read == {name: [True]}
    assert host.page(2) == b"\x09" * 32
    assert storage.batch_exists(["hash0"]) == 0


@pytest.mark.parametrize(
    ("policy", "stored", "expected"),
    [
        (standin.PoolHitPolicy.ALL_PAGES, (0, 1), 2),
        (standin.PoolHitPolicy.ALL_PAGES, (1, 2), 0),
        (standin.PoolHitPolicy.TRAILING_PAGES, (2,), 3),
        (standin.PoolHitPolicy.TRAILING_PAGES, (1,), 2),
        (standin.PoolHitPolicy.TRAILING_PAGES, (), 0),
    ],
)
def test_every_pool_bounds_the_prefix(backend, policy, stored, expected):
    storage = backend()
    host, name = sidecar(storage), standin.PoolName.MAMBA
    keys = filled(storage, 0, 1, 2)
    for page in stored:
        storage.batch_set_v2([transfer(name, [keys[page]], host.indices(page))])
    found = storage.batch_exists_v2(keys, [transfer(name, ["last"], policy=policy)])

    assert found.kv_hit_pages == expected
    assert found.extra_pool_hit_pages[standin.PoolName.KV] == 3
    assert found.extra_pool_hit_pages.get(name, 0) == expected


def test_later_releases_are_told_all_usable_prefixes(backend, monkeypatch):
    @standin.dataclasses.dataclass
    class Later:
        kv_hit_pages: int
        extra_pool_hit_pages: dict
        restorable: list

    storage = backend()
    keys = filled(storage, 0, 1)
    monkeypatch.setattr(
        sys.modules["refimpl.compat.sglang"], "PoolTransferResult", Later
    )

    assert storage.batch_exists_v2(keys).restorable == [1, 2]


def test_a_pool_without_memory_of_its_own_has_every_page(backend):
    host = standin.HostPool(2)
    host.kv_buffer = None
    host.get_hybrid_pool_buffer = list
    storage = backend(host_pool=host)

    assert storage.batch_exists(["a", "b"]) == 2
    assert storage.batch_get_v1(["a", "b"], [0] * 8) == [True, True]
    assert storage.batch_set_v1(["a"], [0] * 4) == [True]


# --- tensors --------------------------------------------------------------------------


def tensor(data):
    made = standin.Tensor(len(data))
    made.array[:] = data
    return made


def test_tensors_are_copied_in_and_out(backend):
    storage = backend()

    assert storage.batch_set(["a", "b"], [tensor(b"x" * 40), tensor(b"y" * 40)])
    found = storage.batch_get(["a", "c", "b"], [tensor(bytes(40)) for _ in range(3)])
    assert [one and bytes(one) for one in found] == [b"x" * 40, None, b"y" * 40]
    assert storage.set("d", tensor(b"z"))
    assert bytes(storage.get("d", tensor(b"-"))) == b"z"
    assert storage.get("d") is None
    assert not storage.set("d")
    assert not storage.batch_set([], [])


def test_a_tensor_with_gaps_is_neither_read_nor_written(backend):
    storage = backend()
    assert storage.set("a", tensor(b"x" * 40))
    gaps = tensor(b"-" * 40)
    gaps.is_contiguous = lambda: False

    assert not storage.set("b", gaps)
    assert storage.get("b", tensor(bytes(40))) is None
    assert storage.get("a", gaps) is None
    assert bytes(gaps) == b"-" * 40


# --- when the pool fails --------------------------------------------------------------


@pytest.fixture
def nowhere():
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    return f"127.0.0.1:{port}"


def test_without_a_pool_everything_is_a_miss(backend, nowhere):
    storage = backend(extra={"master": nowhere, "timeout_s": 0.2})
    host = storage.mem_pool_host

    assert storage.batch_exists(["a"]) == 0
    assert storage.batch_get_v1(["a"], host.indices(0)) == [False]
    assert storage.batch_set_v1(["a"], host.indices(0)) == [False]
    assert storage.batch_get(["a"], [tensor(b"-")]) == [None]
    storage.clear()
    assert storage.state()["connected"] is False


class Dial:
    """A clock that a test turns."""

    now = 100.0

    def __call__(self):
        return self.now


class Broken:
    """A client whose calls answer or raise what a test says."""

    def __init__(self, answer):
        self.answer = answer
        self.calls = 0

    def __getattr__(self, name):
        def call(keys, *_args):
            self.calls += 1
            if isinstance(self.answer, Exception):
                raise self.answer
            return [self.answer] * len(keys)

        return call


@pytest.fixture
def broken(config, nowhere, caplog):
    """A storage over a client of the test's own, with a clock of the test's own."""

    def make(answer):
        dial = Dial()
        settings = BreakerSettings(min_samples=4, open_for_s=5.0, probes_to_close=1)
        storage = PageStorage(
            config({"master": nowhere, "timeout_s": 0.2}), breaker=settings, clock=dial
        )
        storage.register_mem_pool_host(standin.HostPool(2))
        storage._store = Broken(answer)
        return storage, storage._store, dial

    return make


def test_an_exception_of_the_client_is_a_miss(broken):
    storage, _, _ = broken(RuntimeError("on purpose"))
    host = storage.mem_pool_host

    assert storage.batch_exists(["a"]) == 0
    assert storage.batch_get_v1(["a"], host.indices(0)) == [False]
    assert storage.batch_set_v1(["a"], host.indices(0)) == [False]


def test_a_host_pool_that_fails_is_a_miss(broken):
    storage, client, _ = broken(Code.OK)
    storage.mem_pool_host.get_page_buffer_meta = lambda _indices: 1 / 0

    assert storage.batch_get_v1(["a"], [0]) == [False]
    assert client.calls == 0


def test_faults_open_the_breaker_and_nothing_is_sent(broken):
    storage, client, _ = broken(Code.TRANSFER_FAIL)
    host = storage.mem_pool_host
    for _ in range(4):
        storage.batch_get_v1(["a"], host.indices(0))
    sent = client.calls

    assert storage.guard.state is BreakerState.OPEN
    assert storage.batch_get_v1(["a"], host.indices(0)) == [False]
    assert storage.batch_exists(["a"]) == 0
    assert client.calls == sent
    assert storage.state()["counts"]["read_refused"] == 1


def test_a_good_read_closes_it_again_but_no_lookup_does(broken):
    storage, client, dial = broken(Code.TRANSFER_FAIL)
    host = storage.mem_pool_host
    for _ in range(4):
        storage.batch_get_v1(["a"], host.indices(0))
    dial.now += 10.0
    client.answer = 1
    assert storage.batch_exists(["a"]) == 1
    assert storage.guard.state is BreakerState.HALF_OPEN
    client.answer = 96
    assert storage.batch_get_v1(["a"], host.indices(0)) == [True]
    assert storage.guard.state is BreakerState.CLOSED


def test_misses_never_open_the_breaker(broken):
    storage, client, _ = broken(Code.OBJECT_NOT_FOUND)
    for _ in range(50):
        storage.batch_get_v1(["a"], storage.mem_pool_host.indices(0))

    assert storage.guard.state is BreakerState.CLOSED
    assert client.calls == 50


# --- options --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"master": ""}, "HOST:PORT"),
        ({"master": 7}, "HOST:PORT"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"replicas": 0}, "replicas"),
    ],
)
def test_options_that_make_no_sense_are_refused(config, extra, words):
    with pytest.raises(ValueError, match=words):
        PageStorage(config(extra))


def test_split_heads_are_refused(config):
    with pytest.raises(ValueError, match="split heads"):
        PageStorage(config(should_split_heads=True))
