"""Hand-made histories: each kind of violation is found, each legal loss is not."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest

from chaos.correctness.checker import check
from chaos.correctness.findings import Kind
from chaos.correctness.laws import (
    MOONCAKE,
    MOONCAKE_HA,
    MOONCAKE_OPLOG,
    PRESSURE,
    REFIMPL,
    laws_of,
)
from chaos.correctness.operation import Operation, Window
from chaos.systems.base import Limits
from chaos.systems.seen import Found, Seen

STRICT = dataclasses.replace(REFIMPL, lease_s=1.0, tail_s=0.5)
LOOSE = dataclasses.replace(MOONCAKE, lease_s=1.0, tail_s=0.5)
OPLOG = dataclasses.replace(MOONCAKE_OPLOG, lease_s=1.0, tail_s=0.5)
ABSENT, GONE, EXISTS, TIMEOUT = -704, -712, -705, -901


class Story:
    """Operations one after the other, each a second long, unless told otherwise."""

    def __init__(self, laws=STRICT):
        self.laws = laws
        self.operations = []
        self.windows = []
        self.at_s = 0.0
        self._numbers = itertools.count()

    def put(self, value, code=0, *, owners=("store-0",), **more):
        return self._do("put", code, value=value, owners=(owners,), **more)

    def get(self, value, *, found=Found.WHOLE, name="", **more):
        seen = Seen(code=0, found=found, variant=value or 0, name=name)
        return self._do("get", 0, seen=(seen,), path="batched", **more)

    def missed(self, code=ABSENT, **more):
        return self._do("get", code, seen=(Seen(code=code),), path="batched", **more)

    def exists(self, code=0, **more):
        return self._do("exists", code, **more)

    def remove(self, code=0, **more):
        return self._do("remove", code, **more)

    def announce(self, name, code=0):
        return self._do("announce", code, name=name)

    def end(self, name, code=0):
        return self._do("end", code, name=name)

    def fault(self, kind="kill", target="store-0", lasts_s=1.0):
        window = Window(
            kind=kind,
            target=target,
            begin_s=self.at_s + 0.1,
            end_s=self.at_s + 0.1 + lasts_s,
        )
        self.windows.append(window)
        self.at_s += lasts_s + 5.0
        return self

    def found(self):
        return check(self.operations, self.windows, self.laws)

    def kinds(self):
        return [finding.kind for finding in self.found()]

    def _do(self, do, code, *, takes_s=0.5, at_s=None, answered=True, **more):
        begin_s = self.at_s if at_s is None else at_s
        number = next(self._numbers)
        self.operations.append(
            Operation(
                number=number,
                step=number,
                do=do,
                client="c0",
                keys=("k0",),
                begin_s=begin_s,
                end_s=begin_s + takes_s if answered else math.inf,
                codes=(code,) if answered else (),
                **more,
            )
        )
        if at_s is None:
            self.at_s += 1.0
        return self


def test_a_quiet_life_has_no_findings():
    story = Story().put(1).get(1).exists().remove().missed().exists(ABSENT)
    assert story.put(2).get(2).remove().put(3).get(3).found() == []


def test_nothing_at_all_has_no_findings():
    assert check([], [], STRICT) == []


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (Found.ZEROS, Kind.ZEROS),
        (Found.OTHER, Kind.OTHER_KEY),
        (Found.TORN, Kind.TORN),
        (Found.FOREIGN, Kind.FOREIGN),
    ],
)
def test_wrong_bytes_are_found_by_what_they_are(found, kind):
    (finding,) = Story().put(1).get(0, found=found, name="k7").found()
    assert finding.kind is kind
    assert finding.steps == (1,)
    assert "k7" in finding.why


def test_wrong_bytes_are_no_better_after_a_crash():
    assert Story().put(1).fault().get(0, found=Found.ZEROS).kinds() == [Kind.ZEROS]


def test_bytes_of_a_read_that_failed_are_nobodys():
    assert Story().put(1).fault().missed(-800).missed(-801).found() == []


def test_a_value_that_nobody_wrote_is_found():
    assert Story().put(1).get(2).kinds() == [Kind.UNWRITTEN]
    assert Story().get(1).kinds() == [Kind.UNWRITTEN]
    assert Story().exists().kinds() == [Kind.UNWRITTEN]


def test_a_value_whose_write_was_refused_is_written_by_nobody():
    assert Story().put(1).put(2, EXISTS).get(2).kinds() == [Kind.UNWRITTEN]


def test_a_value_read_while_it_is_written_is_no_finding():
    story = Story().put(1, takes_s=3.0)
    assert story.get(1, at_s=1.0).found() == []


def test_a_value_read_before_its_write_began_is_found():
    story = Story()
    story.at_s = 5.0
    assert story.put(1).get(1, at_s=1.0).kinds() == [Kind.UNWRITTEN]


def test_a_removed_value_that_is_read_is_resurrected():
    story = Story().put(1).remove().get(1)
    assert story.kinds() == [Kind.RESURRECTED]
    assert story.found()[0].steps == (1, 2)


def test_a_removed_key_that_exists_is_resurrected():
    assert Story().put(1).remove().exists().kinds() == [Kind.RESURRECTED]


def test_a_removed_value_may_come_of_a_write_that_overlapped():
    story = Story().put(1, takes_s=9.0).remove(at_s=1.0)
    story.at_s = 20.0
    assert story.get(1).exists().found() == []


def test_a_write_without_an_answer_may_come_after_a_removal():
    assert Story().put(1, TIMEOUT).remove().get(1).exists().found() == []
    assert Story().put(1, answered=False).remove().get(1).exists().found() == []


def test_but_not_twice():
    story = Story().put(1, TIMEOUT).get(1).remove().get(1)
    assert story.kinds() == [Kind.RESURRECTED]


def test_a_removal_without_an_answer_proves_nothing():
    assert Story().put(1).remove(TIMEOUT).get(1).found() == []
    assert Story().put(1).remove(-706).get(1).exists().found() == []


def test_a_read_that_overlaps_a_removal_may_see_the_value():
    story = Story().put(1)
    story.remove(at_s=2.0, takes_s=5.0).get(1, at_s=3.0)
    assert story.found() == []


def test_an_older_value_after_a_newer_one_is_stale():
    story = Story().put(1).remove().put(2).get(2).get(1)
    assert story.kinds() == [Kind.STALE]


def test_an_older_value_after_an_acknowledged_write_is_stale():
    story = Story().put(1).fault().put(2).get(1)
    assert story.kinds() == [Kind.STALE]


def test_a_system_that_keeps_the_old_value_may_show_it():
    assert Story(LOOSE).put(1).put(2).get(1).found() == []
    assert Story(LOOSE).put(1).put(2).get(1).get(2).kinds() == [Kind.STALE]


def test_a_key_that_was_not_there_and_is_there_again_flaps():
    assert Story(LOOSE).put(1).fault().exists(ABSENT).exists().kinds() == [Kind.FLAP]
    assert Story(LOOSE).put(1).fault().missed().get(1).kinds() == [Kind.FLAP]


def test_what_is_there_again_flaps_and_is_not_lost():
    assert Story().put(1).missed().get(1).kinds() == [Kind.FLAP]
    assert Story().put(1).exists(ABSENT).exists(ABSENT).exists().kinds() == [Kind.FLAP]


def test_what_is_written_again_was_lost():
    assert Story().put(1).missed().put(2).get(2).kinds() == [Kind.ACK_LOSS]


def test_a_key_that_its_master_names_too_long_is_still_lost():
    assert Story().put(1).missed(GONE).exists().kinds() == [Kind.ACK_LOSS]


def test_an_error_is_no_miss_and_proves_no_flap():
    story = Story(LOOSE).put(1).fault()
    assert story.missed(-800).exists(-900).missed(-703).get(1).exists().found() == []


def test_a_master_may_name_what_is_gone_with_its_store_until_it_notices():
    assert Story().put(1).fault().missed(GONE).exists().found() == []
    assert Story().put(1).fault().missed(GONE).get(1).kinds() == [Kind.FLAP]


def test_an_acknowledged_write_that_is_gone_is_lost():
    story = Story().put(1).missed()
    assert story.kinds() == [Kind.ACK_LOSS]
    assert story.found()[0].steps == (0, 1)
    assert Story().put(1).exists(ABSENT).kinds() == [Kind.ACK_LOSS]
    assert Story().put(1).remove(ABSENT).kinds() == [Kind.ACK_LOSS]


def test_a_loss_is_told_once_and_a_second_one_again():
    story = Story().put(1).missed().missed().exists(ABSENT)
    assert story.kinds() == [Kind.ACK_LOSS]
    assert story.put(2).missed().kinds() == [Kind.ACK_LOSS, Kind.ACK_LOSS]


def test_a_write_let_in_over_another_one_has_lost_it():
    assert Story().put(1).put(2).get(2).kinds() == [Kind.ACK_LOSS]


def test_what_was_never_acknowledged_may_be_lost():
    assert Story().put(1, TIMEOUT).missed().found() == []
    assert Story().put(1, -800).exists(ABSENT).found() == []


@pytest.mark.parametrize("kind", ["kill", "restart", "pause", "partition"])
def test_a_value_may_be_lost_with_the_store_that_held_it(kind):
    assert Story().put(1).fault(kind).missed().found() == []


def test_a_value_is_not_lost_with_another_store():
    story = Story().put(1, owners=("store-1",)).fault("kill", "store-0")
    assert story.missed().kinds() == [Kind.ACK_LOSS]


def test_of_two_replicas_both_stores_must_fail():
    both = ("store-0", "store-1")
    story = Story().put(1, owners=both).fault("kill", "store-0")
    assert story.missed().kinds() == [Kind.ACK_LOSS]
    story = Story().put(1, owners=both).fault("kill", "store-0")
    assert story.fault("kill", "store-1").missed().found() == []


def test_where_nobody_knows_the_store_any_may_have_held_it():
    story = Story().put(1, owners=()).fault("kill", "store-2")
    assert story.missed().found() == []


@pytest.mark.parametrize("kind", ["latency", "bandwidth", "nic_down", "reset"])
def test_a_slow_or_silent_link_loses_nothing(kind):
    assert Story().put(1).fault(kind).missed().kinds() == [Kind.ACK_LOSS]


def test_a_fault_that_was_over_before_the_write_excuses_nothing():
    assert Story().fault().put(1).missed().kinds() == [Kind.ACK_LOSS]


def test_a_role_may_be_taken_for_dead_for_a_moment_after_its_fault():
    story = Story().fault("pause", lasts_s=1.0)
    assert story.put(1, at_s=1.3).missed(at_s=2.0).found() == []


def test_a_fault_after_the_miss_excuses_nothing():
    assert Story().put(1).missed().fault().kinds() == [Kind.ACK_LOSS]


def test_a_removal_that_may_have_happened_excuses_a_miss():
    assert Story().put(1).remove(TIMEOUT).missed().found() == []
    assert Story().put(1).remove(-706).missed().kinds() == [Kind.ACK_LOSS]


def test_eviction_excuses_a_miss_but_no_wrong_bytes():
    story = Story().put(1).fault(PRESSURE, "pool", lasts_s=100.0)
    assert story.missed().found() == []
    assert story.get(0, found=Found.OTHER).kinds() == [Kind.OTHER_KEY]


@pytest.mark.parametrize(
    ("laws", "kind", "target", "lost"),
    [
        (REFIMPL, "kill", "master", False),
        (REFIMPL, "restart", "master", False),
        (REFIMPL, "pause", "master", True),
        (MOONCAKE, "kill", "master", False),
        (MOONCAKE, "pause", "master", True),
        (MOONCAKE_HA, "pause", "master-1", False),
        (MOONCAKE_HA, "pause", "etcd", True),
        (MOONCAKE_OPLOG, "kill", "master", True),
        (MOONCAKE_OPLOG, "pause", "master-2", True),
        (MOONCAKE_OPLOG, "kill", "store-0", False),
    ],
)
def test_which_faults_may_lose_a_value_is_the_systems_law(laws, kind, target, lost):
    story = Story(laws).put(1).fault(kind, target).missed()
    assert story.kinds() == ([Kind.ACK_LOSS] if lost else [])


def test_an_acknowledged_value_that_cannot_be_read_when_all_is_well_is_found():
    story = Story().put(1).missed(-801, quiet=True)
    assert story.kinds() == [Kind.UNREADABLE]
    assert Story().put(1).missed(-801).found() == []
    assert Story().put(1).fault().missed(-801, quiet=True).found() == []
    assert Story().put(1, -800).missed(-801, quiet=True).found() == []


@pytest.mark.parametrize("code", [TIMEOUT, -9001])
def test_a_write_acknowledged_beside_one_that_stands_open_is_told_apart(code):
    gone = Story(LOOSE).put(1, code).put(2).missed()
    assert gone.kinds() == [Kind.UNFINISHED]
    assert gone.found()[0].steps == (0, 1, 2)
    unread = Story(LOOSE).put(1, answered=False).put(2).missed(-703, quiet=True)
    assert unread.kinds() == [Kind.UNFINISHED]


def test_where_writes_of_what_is_there_are_refused_nothing_stands_open():
    story = Story().put(1, TIMEOUT).put(2).missed()
    assert story.kinds() == [Kind.ACK_LOSS]


@pytest.mark.parametrize("code", [0, EXISTS, -200, -800])
def test_a_write_whose_end_was_told_excuses_no_loss(code):
    story = Story(LOOSE).put(1, code).put(2).missed()
    assert story.kinds() == [Kind.ACK_LOSS]


def test_a_write_that_began_later_excuses_no_loss():
    story = Story(LOOSE).put(1).put(2, TIMEOUT).missed()
    assert story.kinds() == [Kind.ACK_LOSS]


def test_what_was_read_once_did_not_only_begin():
    story = Story(LOOSE).put(1, TIMEOUT).put(2).get(2).missed()
    assert Kind.ACK_LOSS in story.kinds()
    assert Kind.UNFINISHED not in story.kinds()
    ended = Story(LOOSE).put(1, TIMEOUT).get(1).remove().put(2).missed()
    assert Kind.UNFINISHED not in ended.kinds()


def test_what_was_removed_stands_open_no_more():
    story = Story(LOOSE).put(1, TIMEOUT).remove().put(2).missed()
    assert story.kinds() == [Kind.ACK_LOSS]


def test_a_write_of_long_ago_stands_open_no_more():
    story = Story(LOOSE).put(1, TIMEOUT)
    story.at_s += LOOSE.open_s
    assert story.put(2).missed().kinds() == [Kind.ACK_LOSS]


def test_a_good_read_far_beyond_its_lease_is_late():
    assert Story().put(1).get(1, takes_s=3.5).kinds() == [Kind.LATE_READ]
    assert Story().put(1).get(1, takes_s=2.9).found() == []


def test_the_start_of_a_client_is_no_part_of_its_read():
    assert Story().put(1).get(1, takes_s=9.0, took_s=2.9).found() == []
    late = Story().put(1).get(1, takes_s=9.0, took_s=3.5)
    assert late.kinds() == [Kind.LATE_READ]


def test_reads_of_several_calls_or_of_a_paused_master_are_not_timed():
    assert Story().put(1).get(1, takes_s=3.5, calls=4).found() == []
    story = Story().put(1)
    story.windows.append(Window(kind="pause", target="master", begin_s=1.2, end_s=3.0))
    assert story.get(1, takes_s=3.5).found() == []
    slow = Story().put(1)
    slow.windows.append(
        Window(kind="bandwidth", target="store-0", begin_s=0.9, end_s=9.0)
    )
    assert slow.get(1, takes_s=3.5).kinds() == [Kind.LATE_READ]


def test_the_end_of_a_write_that_was_replaced_must_be_refused():
    story = Story().announce("a").announce("b")
    assert story.end("a", -601).end("b").found() == []
    story = Story().announce("a").announce("b").end("a")
    assert story.kinds() == [Kind.STALE_END]
    story = Story().announce("a").put(1).end("a")
    assert story.kinds() == [Kind.STALE_END]


def test_of_a_write_that_was_ended_without_bytes_nothing_is_known():
    story = Story().announce("a").announce("b", EXISTS).end("a")
    assert story.exists().get(0, found=Found.FOREIGN).found() == []


def test_findings_come_in_the_order_of_the_steps():
    story = Story().put(1).missed().put(2).remove().get(2)
    assert [finding.steps[-1] for finding in story.found()] == [1, 4]


def limits_of(**seconds):
    fields = Limits.__dataclass_fields__
    counts = {"breaker_probes_to_close", "block_tokens", "page_tokens"}
    return Limits(**{**{n: 1 if n in counts else 1.0 for n in fields}, **seconds})


@pytest.mark.parametrize("mode", ["", "ha", "oplog"])
def test_a_dead_store_lingers_in_mooncake_until_it_is_taken_for_dead(mode):
    limits = limits_of(client_ttl_s=3.0, ping_interval_s=1.0)

    assert laws_of("mooncake", mode, limits).tail_s == 5.0
    assert laws_of("refimpl", "", limits).tail_s == 3.0


def test_a_write_that_is_there_on_a_dead_store_goes_with_it():
    """Its store came back as another one; the write is told that its key is there."""

    def after(tail_s):
        story = Story(dataclasses.replace(LOOSE, tail_s=tail_s)).put(1)
        story.windows.append(
            Window(kind="restart", target="store-0", begin_s=1.0, end_s=1.1)
        )
        story.at_s = 4.2
        return story.put(2).missed(-800).missed().kinds()

    assert after(5.0) == []
    assert set(after(3.0)) == {Kind.ACK_LOSS}


@pytest.mark.parametrize(
    ("target", "away_s", "looks_after_s", "removed", "kind"),
    [
        ("master", 1.0, [], True, Kind.FLAP),
        ("master", 1.0, [5.0], True, Kind.FLAP),
        ("master", 1.0, [5.0, 20.0], True, Kind.ACK_LOSS),
        ("master", 1.0, [], False, Kind.ACK_LOSS),
        ("store-1", 1.0, [], True, Kind.ACK_LOSS),
        ("master", 1.0, None, True, Kind.ACK_LOSS),
        ("master", 300.0, [], True, Kind.ACK_LOSS),
    ],
    ids=["at once", "soon", "looked", "stays", "store", "rewritten", "long away"],
)
def test_what_was_removed_before_it_could_be_back_is_no_proof_of_a_loss(
    target, away_s, looks_after_s, removed, kind
):
    """As an heir begins, keys are missing for a moment; nobody looked again."""
    story = Story(OPLOG).put(1).fault("kill", target, away_s)
    story.at_s -= 10.0 if away_s > 20.0 else 0.0  # its fault is not over yet
    story.exists(ABSENT)
    if looks_after_s is None:
        story.put(2).get(2)
    for after_s in looks_after_s or []:
        story.at_s += after_s
        story.exists(ABSENT)
    if removed:
        story.at_s += 20.0
        story.remove()

    assert story.kinds() == [kind]


@pytest.mark.parametrize(
    ("laws", "pause_s", "seen", "kind"),
    [
        (OPLOG, 0.0, "", Kind.REMOVED_LATE),
        (OPLOG, 1.0, "", Kind.ACK_LOSS),
        (OPLOG, 0.0, "read", Kind.ACK_LOSS),
        (OPLOG, 0.0, "there", Kind.ACK_LOSS),
        (LOOSE, 0.0, "", Kind.ACK_LOSS),
    ],
)
def test_a_write_that_a_removal_just_before_took_is_a_kind_of_its_own(
    laws, pause_s, seen, kind
):
    story = Story(laws).put(1).remove()
    story.at_s += pause_s
    story.put(2)
    if seen == "read":
        story.get(2)
    elif seen == "there":
        story.exists()

    assert story.missed().kinds() == [kind]


def test_what_is_there_and_cannot_be_read_was_not_removed():
    story = Story(OPLOG).put(1).remove().put(2).exists(quiet=True)

    assert story.missed(-800, quiet=True).kinds() == [Kind.UNREADABLE]
