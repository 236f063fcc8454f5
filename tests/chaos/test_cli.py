from __future__ import annotations

import json

import pytest

from chaos.cli import main
from chaos.safety import remote
from chaos.safety.ledger import FaultState, Ledger


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(remote, "STATE_DIRECTORY", str(tmp_path / "run"))


def test_nothing_to_show_is_a_pass(capsys) -> None:
    assert main(["status"]) == 0
    assert main(["recover"]) == 0
    assert capsys.readouterr().out == "no run, no fault\nnothing to recover\n"


def test_a_live_run_is_shown_with_its_faults(capsys) -> None:
    ledger = Ledger.create(command="pytest suites/chaos")
    ledger.fault("kill-1", FaultState.ACTIVE, kind="kill", target="store-3")

    assert main(["status"]) == 0
    shown = capsys.readouterr().out
    assert "(alive" in shown
    assert "fault kill(store-3) active" in shown
    ledger.fault("kill-1", FaultState.REVERTED, kind="kill", target="store-3")
    ledger.close()


def dead_run(tmp_path, path: str) -> None:
    folder = tmp_path / f"moonquake-{__import__('os').getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    rows = [
        {"row": "run", "pid": 1, "start_ticks": -1, "command": "gone"},
        {"row": "temporary", "path": path},
    ]
    text = "".join(json.dumps({"at": "2026-01-01T00:00:00Z", **r}) + "\n" for r in rows)
    (folder / "run-1-0.jsonl").write_text(text)


def test_residue_of_a_dead_run_is_exit_code_5_until_it_is_recovered(
    tmp_path, capsys
) -> None:
    (tmp_path / "moonquake-work").write_text("x")
    dead_run(tmp_path, str(tmp_path / "moonquake-work"))

    assert main(["status"]) == 5
    assert main(["recover"]) == 0
    assert main(["status"]) == 0
    assert "removed" in capsys.readouterr().out


def test_what_cannot_be_undone_is_exit_code_5(tmp_path, capsys) -> None:
    dead_run(tmp_path, str(tmp_path))

    assert main(["recover", "--json"]) == 5
    told = json.loads(capsys.readouterr().out)
    (action,) = told["actions"]
    assert action["done"] is False
    assert told["hosts"] == []


def test_a_plan_of_a_fault_is_its_exact_steps(capsys) -> None:
    assert main(["plan", "nic_down", "store-3", "rail=rail1"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" of ")[0] for line in lines] == [
        "add timeout {'timeout': 0} to the upstream",
        "add timeout {'timeout': 0} to the downstream",
    ]


def test_a_plan_of_a_cluster_names_every_role_and_link(capsys) -> None:
    assert main(["plan", "--stores", "2", "--engines", "1", "--json"]) == 0

    plan = json.loads(capsys.readouterr().out)
    assert len(plan["commands"]) == 4
    assert {link["name"] for link in plan["links"]} >= {
        "store-1.rail1",
        "master.rpc@engine-0",
        "master.heartbeat@store-0",
        "master.rpc@probe",
    }


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (["plan", "flood", "store-3"], "there are bandwidth"),
        (["plan", "kill"], "chaos plan kill store-3"),
        (["plan", "latency", "store-3"], "latency_ms=..."),
        (["plan", "latency", "store-3", "soon"], "NAME=VALUE"),
        (["plan", "--stores", "200"], "do not fit"),
        (["plan", "--system", "nonesuch"], "--system refimpl"),
        (["analyze", "/nonexistent"], "results/latest"),
        (["score", "--only", "nonesuch"], "no defect is called nonesuch"),
    ],
)
def test_a_wrong_question_is_exit_code_2_and_one_line_with_the_fix(
    capsys, arguments, fix
) -> None:
    assert main(arguments) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert fix in line


def test_an_unknown_command_is_a_usage_error(capsys) -> None:
    assert main(["explode"]) == 2
    assert "explode" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["plan", "status", "recover", "score", "analyze"])
def test_help_has_examples_and_the_exit_codes(capsys, command) -> None:
    assert main([command, "--help"]) == 0

    shown = capsys.readouterr().out
    assert f"chaos {command}" in shown.partition("Examples:")[2]
    assert "5  a fault was left behind" in shown


def test_our_own_crash_is_exit_code_4(monkeypatch, capsys) -> None:
    def broken() -> None:
        message = "disk on fire"
        raise OSError(message)

    monkeypatch.setattr("chaos.safety.recover.status", broken)

    assert main(["status"]) == 4
    assert "disk on fire" in capsys.readouterr().err
