"""Which tests must turn red for which defect of the reference system.

A defect is a failpoint `defect.<name>` that all roles start with; see `chaos score`.
"""

from __future__ import annotations

_BLAST = "suites/chaos/test_blast_radius.py::"
_BREAKER = "suites/chaos/test_circuit_breaker.py::"
_PARTIAL = "suites/chaos/test_partial_reuse.py::"
_STEADY = "suites/chaos/test_steady_state.py::"

DEFECTS: dict[str, tuple[str, ...]] = {
    "breaker_never_closes": (
        f"{_BREAKER}test_half_open_admits_one_probe_at_a_time_under_load",
    ),
    "breaker_never_opens": (
        f"{_BREAKER}test_spread_faults_above_half_of_the_operations_open_it",
    ),
    "checksum_not_checked": (f"{_PARTIAL}test_corrupted_bytes_are_never_used",),
    "deadline_ignored": (
        f"{_PARTIAL}test_a_silent_store_costs_its_pages_and_at_most_the_deadline[pause]",
    ),
    "lease_not_checked": (
        f"{_STEADY}test_a_read_longer_than_its_lease_is_no_read[16-16384-remote]",
    ),
    "page_released_early": (
        f"{_STEADY}test_the_pages_of_a_late_read_serve_nobody_else",
    ),
    "placement_random": (
        f"{_BLAST}test_writers_with_a_host_fill_it_first_then_spread",
    ),
    "stale_end_accepted": (f"{_STEADY}test_a_stale_end_has_no_effect",),
}
