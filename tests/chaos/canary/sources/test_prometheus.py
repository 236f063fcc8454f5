"""A real Prometheus server scrapes tiny exporters, and `canary judge` asks it.

Every scrape of an exporter is as much load as was served since the last one, drawn from
a seed: no clock of ours has a say in what is counted.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import generate_latest

from chaos.canary.cli import main
from chaos.safety.identity import wait_until

BINARY = shutil.which("prometheus")
needs_prometheus = pytest.mark.skipif(
    BINARY is None,
    reason="no prometheus binary on the PATH: apt-get install prometheus",
)
SCRAPE_S = 0.5
LOAD_S = 8.0
REQUESTS = 120
FINE = [0.02 * 1.05**n for n in range(110)]
COARSE = [0.1, 0.25, 0.5, 1.0, 2.5]
POLICY = """\
schema: canary.policy/1
name: from prometheus
invariants: [wrong_bytes]
slos: [{metric: ttft_s, quantile: 0.9, at_most: 2.5s}]
relative:
  - {metric: ttft_s, quantile: 0.5, max_ratio: 1.5}
  - {metric: hit_rate, max_delta: 5%}
  - {metric: error_rate, max_delta: 5%}
validity: {max_lag_ratio: null, max_mix_distance: null}
"""
QUERIES = """\
schema: canary.queries/1
metrics: {ttft_s: ttft_seconds}
failed: failed_total
hit_tokens: hit_tokens_total
prompt_tokens: prompt_tokens_total
counters: {wrong_bytes: wrong_bytes_total}
"""


class Listener(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self):
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]


class Exporter:
    """A target: every scrape finds `REQUESTS` more requests. `stop` is its death."""

    def __init__(self, *, slow=1.0, buckets=FINE, wrong=0, seed=1, failing=True):
        self.slow, self.buckets, self.failing = slow, buckets, failing
        self._rng = np.random.default_rng(seed)
        self.scrapes = 0
        self.begin()
        self.wrong.inc(wrong)
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                exporter.serve()
                body = generate_latest(exporter.registry)
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                with contextlib.suppress(OSError):  # the server may not wait for us
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *args):
                """Says nothing."""

        self._server = Listener(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def begin(self):
        """All counters from 0, as after a restart."""
        self.registry = CollectorRegistry()
        known = {"registry": self.registry}
        self.ttft = Histogram("ttft_seconds", "-", buckets=self.buckets, **known)
        self.hits = Counter("hit_tokens", "-", **known)
        self.prompts = Counter("prompt_tokens", "-", **known)
        self.wrong = Counter("wrong_bytes", "-", **known)
        if self.failing:
            self.failed = Counter("failed", "-", **known)

    def serve(self):
        self.scrapes += 1
        for value in self._rng.lognormal(-1.2, 0.4, REQUESTS) * self.slow:
            self.ttft.observe(float(value))
        self.prompts.inc(4096 * REQUESTS)
        self.hits.inc(3072 * REQUESTS)

    def stop(self):
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


@pytest.fixture(scope="module")
def exporters():
    made = {
        "stable": Exporter(seed=1),
        "canary": Exporter(seed=2),
        "slow": Exporter(seed=3, slow=2.5),
        "wrong": Exporter(seed=4, wrong=0),
        "coarse-stable": Exporter(seed=5, buckets=COARSE),
        "coarse": Exporter(seed=6, buckets=COARSE),
        "dead": Exporter(seed=7),
        "restarted": Exporter(seed=8),
        "uncounted": Exporter(seed=9, failing=False),
        "partial": Exporter(seed=10),
        "partial#2": Exporter(seed=11, failing=False),
        "crashing": Exporter(seed=12),
    }
    yield made
    for exporter in made.values():
        exporter.stop()


@pytest.fixture(scope="module")
def prometheus(exporters, tmp_path_factory):
    """(address, begin, end) of a server that has seen `LOAD_S` seconds of load."""
    folder = tmp_path_factory.mktemp("prometheus")
    targets = [
        {"targets": [each.address], "labels": {"track": name.partition("#")[0]}}
        for name, each in exporters.items()
    ]
    nobody = {"targets": ["127.0.0.1:1"], "labels": {"track": "crashing"}}
    targets.append(nobody)
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms"},
        "scrape_configs": [{"job_name": "engines", "static_configs": targets}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    address = f"127.0.0.1:{free_port()}"
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [
                BINARY,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
                "--storage.tsdb.retention.time=1h",
            ],
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    try:
        ready = wait_until(lambda: answers(f"http://{address}/-/ready"), timeout_s=30)
        assert ready, (folder / "log").read_text()[-2000:]
        seen = lambda: all(each.scrapes > 4 for each in exporters.values())  # noqa: E731
        assert wait_until(seen, timeout_s=30)
        begin = time.time()
        time.sleep(LOAD_S / 2)
        exporters["dead"].stop()
        exporters["restarted"].begin()
        exporters["wrong"].wrong.inc()
        time.sleep(LOAD_S / 2)
        yield f"http://{address}", begin, time.time()
    finally:
        server.terminate()
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.fixture
def judge(tmp_path, capsys, monkeypatch):
    """`canary judge` of a server: (exit code, verdict document or complaint)."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "queries.yaml").write_text(QUERIES)

    def run(server, canary, baseline="stable", **changed):
        url, begin, end = server
        options = {
            "prometheus": url,
            "baseline-selector": f'track="{baseline}"',
            "canary-selector": f'{{track="{canary}"}}',
            "from": f"{begin:.3f}",
            "to": f"{end:.3f}",
            "queries": tmp_path / "queries.yaml",
            "policy": tmp_path / "policy.yaml",
            **changed,
        }
        words = [
            w for name, value in options.items() for w in (f"--{name}", str(value))
        ]
        monkeypatch.setattr(sys, "argv", ["canary", "judge", *words])
        code = main(["judge", *words, "--json"])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, json.loads(out) if out else err

    return run


def reasons(document):
    return " ".join(row["reason"] for row in document["judgements"])


def of(document, name):
    return next(row for row in document["judgements"] if row["name"] == name)


pytestmark = pytest.mark.slow


@needs_prometheus
def test_an_unchanged_build_passes(prometheus, judge) -> None:
    code, document = judge(prometheus, "canary")

    assert (code, document["verdict"]) == (0, "PASS"), reasons(document)
    least = REQUESTS * (LOAD_S / SCRAPE_S) * 0.5
    assert of(document, "ttft_s p50")["n_canary"] > least
    hits = of(document, "hit_rate")
    assert (hits["baseline"], hits["canary"]) == (0.75, 0.75)


@needs_prometheus
def test_a_page_is_drawn_from_buckets_too(prometheus, judge, tmp_path) -> None:
    code, _ = judge(prometheus, "canary", out=tmp_path / "v")

    assert code == 0
    assert "<html" in (tmp_path / "v" / "report.html").read_text()


@needs_prometheus
def test_a_slower_build_fails(prometheus, judge) -> None:
    code, document = judge(prometheus, "slow")

    assert (code, document["verdict"]) == (1, "FAIL")
    assert of(document, "ttft_s p50")["verdict"] == "FAIL"


@needs_prometheus
def test_wrong_bytes_during_the_window_fail(prometheus, judge) -> None:
    code, document = judge(prometheus, "wrong")

    assert code == 1
    assert of(document, "wrong_bytes")["canary"] == 1


@needs_prometheus
def test_buckets_that_are_too_wide_decide_nothing(prometheus, judge) -> None:
    code, document = judge(prometheus, "coarse", "coarse-stable")

    assert (code, document["verdict"]) == (3, "INCONCLUSIVE")
    assert "buckets of this histogram are too wide" in reasons(document)
    assert of(document, "ttft_s p90")["verdict"] == "PASS"  # 2.5 s is a bound of them


@needs_prometheus
@pytest.mark.parametrize(
    ("canary", "told"),
    [
        ("dead", "s early"),
        ("restarted", "began again at 0"),
        ("uncounted", "no series failed_total matches"),
        ("partial", "failed_total is not counted by 127.0.0.1"),
        ("crashing", "127.0.0.1:1 did not answer"),
        ("nobody", "no series ttft_seconds_bucket matches"),
    ],
)
def test_an_arm_that_was_not_measured_whole_never_passes(
    prometheus, judge, canary, told
) -> None:
    code, document = judge(prometheus, canary)

    assert (code, document["verdict"]) == (3, "INCONCLUSIVE")
    assert told in reasons(document)


@needs_prometheus
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"canary-selector": 'track="stable"'}, "both selectors are the same"),
        ({"canary-selector": 'track=~"sta.*"'}, "are in both arms"),
        ({"canary-selector": 'track="'}, "answered 400"),
        ({"canary-selector": ""}, "--canary-selector is missing"),
        ({"from": "now"}, "is not before --to"),
        ({"to": "2099-01-01"}, "in the future"),
        ({"from": "yesterday"}, "is no instant"),
        ({"queries": "nowhere.yaml"}, "there are vllm, sglang"),
    ],
)
def test_a_wrong_question_to_a_server_is_one_line(
    prometheus, judge, changed, told
) -> None:
    code, err = judge(prometheus, "canary", **changed)

    assert code == 2
    assert told in err
    assert err.count("\n") == 1
