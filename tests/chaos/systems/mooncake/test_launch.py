"""The program before Mooncake's programs: it does what it was told, or ends."""

from __future__ import annotations

from chaos.systems.mooncake import launch


class Libc:
    """A kernel that refuses personalities, as containers' filters do."""

    def personality(self, persona):
        return -1

    def prctl(self, *_):
        return 0


def test_where_addresses_cannot_be_fixed_nothing_is_started(
    monkeypatch, capsys
) -> None:
    monkeypatch.setattr(launch.ctypes, "CDLL", lambda *_, **__: Libc())
    started = []
    monkeypatch.setattr(launch.os, "execv", lambda *args: started.append(args))

    assert launch.main(["--no-aslr", "--", "/bin/true"]) == 4
    assert "no fixed addresses" in capsys.readouterr().err
    assert started == []
