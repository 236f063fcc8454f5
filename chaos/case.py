"""One test as the plugin sees it: its docket, its faults, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chaos.docket import Docket
from chaos.judge.validity import judge_evidence

if TYPE_CHECKING:
    from chaos.faults.base import Receipt
    from chaos.faults.injector import Injector

_TAP = "tap"
"""Counts and breaks nothing: that nothing flowed may be the very law."""


@dataclass(slots=True, kw_only=True)
class Case:
    """Collected while a test runs; `conclude` undoes its faults and completes it."""

    nodeid: str
    reproduce: str
    seed: int
    docket: Docket = field(default_factory=Docket)
    injectors: list[Injector] = field(default_factory=list)
    asked_to_judge: bool = False
    concluded: bool = False

    @property
    def receipts(self) -> list[Receipt]:
        return [receipt for each in self.injectors for receipt in each.receipts]

    @property
    def residual(self) -> list[Receipt]:
        return [receipt for receipt in self.receipts if receipt.residual]

    @property
    def decides(self) -> bool:
        """Whether the docket decides this test: it was asked for, or has entries."""
        return self.asked_to_judge or bool(self.docket.judgements)

    def conclude(self) -> None:
        """Undoes what is still broken, and judges the faults themselves, once."""
        if self.concluded:
            return
        self.concluded = True
        for injector in self.injectors:
            try:
                injector.revert_all()
            except ExceptionGroup:
                continue  # every member is a residual receipt, judged below
        faults = [receipt for receipt in self.receipts if receipt.kind != _TAP]
        if faults:
            self.docket(judge_evidence(faults))
