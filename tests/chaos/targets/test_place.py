from __future__ import annotations

import pytest

from chaos.targets.netns import NetnsTarget
from chaos.targets.place import Place


@pytest.mark.parametrize(
    "words", ["--password hunter2hunter2", "--pool http://me:hunter2hunter2@master/"]
)
def test_what_hosts_are_told_of_a_run_has_no_secrets(words, tmp_path) -> None:
    """It is an argument of the agent, and every user of a host reads those."""
    target = Place(kind="netns").target(
        run_dir=tmp_path, ledger=None, block=None, command=f"pytest {words}"
    )

    assert isinstance(target, NetnsTarget)
    assert "pytest" in target.controller
    assert "hunter2" not in target.controller
