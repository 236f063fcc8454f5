"""What was read is returned; what was not is refused, with the reason."""

from __future__ import annotations

import pytest

from checks.errors import UsageError
from checks.facts import Facts, Unread, derived, documents, first


def refusal(call):
    with pytest.raises(Unread) as caught:
        call()
    return caught.value.kind


def command(bench, entry, line="tool"):
    return Facts(bench.doc(cmds={line: entry})).result("tool")


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        ({"rc": 0, "stdout": "x", "timeout": True}, "timeout"),
        ({"rc": 127, "stdout": ""}, "no tool"),
        ({"errno": "ENOENT"}, "no tool"),
        ({"rc": 1, "stdout": "x", "stderr": "boom"}, "failed"),
        ({"rc": 0, "stdout": " \n"}, "empty"),
        ({"rc": 0, "stdout": "abc", "bytes": 4}, "truncated"),
        ({"stdout": "x"}, "failed"),
        ({}, "failed"),
        (None, "failed"),
    ],
)
def test_output_that_cannot_be_trusted_is_refused(bench, entry, kind):
    assert refusal(command(bench, entry).text) == kind


def test_bytes_count_utf8_and_not_letters(bench):
    whole = {"rc": 0, "stdout": "grün", "bytes": 5}

    assert command(bench, whole).text() == "grün"


def test_json_that_is_not_whole_is_garbled(bench):
    assert refusal(command(bench, "[{").json) == "garbled"


def test_a_command_that_nobody_ran_is_missing(bench):
    assert refusal(lambda: Facts(bench.doc()).result("ip", "rule")) == "missing"


def test_a_good_run_is_preferred_to_a_failed_one(bench):
    cmds = {"ip -j rule": (1, "", "no"), "ip -j -4 rule": "[]"}

    assert Facts(bench.doc(cmds=cmds)).result("ip", "rule").text() == "[]"


def test_a_command_in_a_pod_is_found_only_there(bench):
    facts = Facts(bench.doc(cmds={"kubectl exec a -- show_gids": "n_gids_found=0\n"}))

    assert facts.find("show_gids") == ()
    assert len(facts.find("show_gids", where="pod:a")) == 1
    assert facts.places() == ("pod:a",)


def test_samples_are_in_the_order_of_their_times(bench):
    cmds = {"tool": [(12.0, "new"), (10.0, "old")]}
    facts = Facts(bench.doc(cmds=cmds))

    assert [s.stdout for s in facts.samples("tool")] == ["old", "new"]
    assert facts.result("tool").stdout == "new"


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        ({"errno": "ENOENT"}, "absent"),
        ({"errno": "EACCES"}, "denied"),
        ({"errno": "EINVAL"}, "errno"),
        ({"entries": []}, "garbled"),
        ({"text": "ab", "bytes": 3}, "truncated"),
        ({}, "garbled"),
    ],
)
def test_a_file_that_has_no_text_is_refused_with_its_errno(bench, entry, kind):
    assert refusal(lambda: Facts(bench.doc(files={"/f": entry})).text("/f")) == kind


def test_a_directory_is_its_entries_and_what_paths_below_it_tell(bench):
    files = {"/d": ("a",), "/d/b/c": "x"}
    facts = Facts(bench.doc(files=files))

    assert facts.names("/d") == ("a", "b")
    assert facts.names("/d/b") == ("c",)
    assert facts.exists("/d/b")


def test_an_absent_directory_is_empty_and_an_unknown_one_is_refused(bench):
    facts = Facts(bench.doc(files={"/gone": {"errno": "ENOENT"}}))

    assert facts.names("/gone") == ()
    assert not facts.exists("/gone")
    assert refusal(lambda: facts.names("/never")) == "missing"
    assert refusal(lambda: facts.exists("/never")) == "missing"


def test_existence_that_nobody_may_see_is_refused(bench):
    facts = Facts(bench.doc(files={"/f": {"errno": "EACCES"}}))

    assert refusal(lambda: facts.exists("/f")) == "denied"


def test_numbers_and_links_are_read_or_refused(bench):
    files = {"/n": "0x10\n", "/t": "ten\n", "/l": {"link": "../x"}}
    facts = Facts(bench.doc(files=files))

    assert facts.number("/n") == 16
    assert refusal(lambda: facts.number("/t")) == "garbled"
    assert facts.link("/l") == "../x"
    assert refusal(lambda: facts.link("/n")) == "garbled"


def test_a_pattern_matches_within_one_level(bench):
    facts = Facts(bench.doc(files={"/a/1/x": "", "/a/1/y/x": "", "/a/2/x": ""}))

    assert facts.matching("/a/*/x") == ("/a/1/x", "/a/2/x")


def test_run_and_var_run_are_the_same_place(bench):
    facts = Facts(bench.doc(files={"/run/openvswitch/a.pid": "1\n"}))

    assert facts.number("/var/run/openvswitch/a.pid") == 1


def test_a_derived_value_is_built_once_and_credits_what_it_read(bench):
    built = []

    @derived
    def reader(facts):
        built.append(1)
        return facts.line("/f")

    facts = Facts(bench.doc(files={"/f": "x\n"}))
    first_time = facts.credited(lambda: reader(facts))
    second_time = facts.credited(lambda: reader(facts))

    assert (built, first_time, second_time) == ([1], ("x", ("/f",)), ("x", ("/f",)))


def test_what_is_read_is_credited_once_and_in_order_inside_and_outside(bench):
    facts = Facts(bench.doc(files={f"/{name}": "x\n" for name in "abc"}))

    def inside():
        return [facts.line(f"/{name}") for name in "bab"]

    def outside():
        facts.line("/c")
        first = facts.credited(inside)
        again = facts.credited(inside)
        facts.line("/c")
        return first, again

    (first, again), credit = facts.credited(outside)
    assert first[1] == again[1] == ("/b", "/a")
    assert credit == ("/c", "/b", "/a")


def test_what_failed_to_be_read_leaves_its_credit_outside(bench):
    facts = Facts(bench.doc(files={"/a": "x\n"}))

    def fails():
        facts.line("/a")
        raise RuntimeError

    def outside():
        with pytest.raises(RuntimeError):
            facts.credited(fails)

    assert facts.credited(outside) == (None, ("/a",))


def test_a_refusal_is_remembered_too(bench):
    built = []

    @derived
    def reader(facts):
        built.append(1)
        return facts.line("/f")

    facts = Facts(bench.doc())

    assert [refusal(lambda: reader(facts)) for _ in range(2)] == ["missing", "missing"]
    assert built == [1]


def test_of_several_refusals_the_telling_one_is_kept(bench):
    facts = Facts(bench.doc(files={"/denied": {"errno": "EACCES"}}))
    call = first

    kind = refusal(
        lambda: call(lambda: facts.line("/never"), lambda: facts.line("/denied"))
    )
    assert kind == "denied"


@pytest.mark.parametrize("junk", [None, 7, "text", [], {"cmds": 3, "files": "x"}])
def test_a_document_full_of_junk_is_refused_and_never_a_traceback(junk):
    facts = Facts({"node": junk, "cmds": junk, "files": junk, "collector": junk})

    assert facts.said("hostname") == ""
    assert refusal(lambda: facts.result("ip", "rule")) == "missing"
    assert refusal(lambda: facts.text("/x")) == "missing"


@pytest.mark.parametrize(
    "loaded", [3, [3], {}, {"schema": "preflight.facts/9"}, [{"schema": None}]]
)
def test_what_is_no_facts_document_is_a_usage_error(loaded):
    with pytest.raises(UsageError):
        documents(loaded, "f.json")
