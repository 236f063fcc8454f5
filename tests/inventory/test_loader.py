"""Files as operators write them, and what they are told when something is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inventory import HostEntry, Inventory, InventoryError, SshProblem, load
from inventory.loader import parse

ROOT = Path(__file__).parents[2]

YAML = """\
all:
  vars:
    environment: staging
    ansible_user: moon
    ansible_ssh_private_key_file: keys/id
    some_other_program: {{ is: not ours }}
  children:
    stores:
      vars:
        chaos: allowed
        control: {device: ctl0}
        rails:
          - {name: rail0, device: eth1, gpu: 0}
          - {name: rail1, device: eth2, gpu: 1}
      hosts:
        node[01:03]:
          roles: [store]
        special:
          ansible_host: 10.0.0.9
          ansible_port: 2222
          ansible_user: root
          ansible_become: yes
          chaos: refused
          control: {address: 10.1.0.9}
          rails:
            rail1: {address: 10.2.0.9/24}
    racks:
      children:
        rack1:
          hosts: {node01: , node02: }
""".replace("{{", "{").replace("}}", "}")

INI = """\
; hosts of staging
loner ansible_host=10.0.0.1 role=master

[stores]
node[01:03] roles='["store"]'   # three of them
special:2222 ansible_host=10.0.0.9 ansible_user=root ansible_become=true \
rails='[{"name": "rail0", "device": "eth1", "gpu": 0}]'

[racks:children]
stores

[stores:vars]
chaos = allowed
cohort = 8

[all:vars]
environment=staging
ansible_user = moon
"""


def yaml(text: str) -> Inventory:
    return parse(text, Path("/etc/site/hosts.yaml"))


def ini(text: str) -> Inventory:
    return parse(text, Path("/etc/site/hosts.ini"))


def complaint(text: str, suffix: str = "yaml") -> str:
    with pytest.raises(InventoryError) as caught:
        parse(text, Path(f"hosts.{suffix}"))
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("hosts.")
    return message


def one_host(line: str) -> str:
    """A YAML inventory of one host with one line of variables, the third."""
    return f"all:\n  hosts: {{n1: {{\n{line}\n}}}}\n"


def test_yaml_groups_ranges_and_variables_become_hosts() -> None:
    inventory = yaml(YAML)
    node = inventory.host("node02")

    assert [h.name for h in inventory.hosts] == [
        "node01",
        "node02",
        "node03",
        "special",
    ]
    assert (node.address, node.user, node.roles) == ("node02", "moon", ("store",))
    assert node.environment == "staging"
    assert node.groups == ("all", "racks", "stores", "rack1")
    assert inventory.groups["racks"] == ("node01", "node02")


def test_what_is_said_nearer_to_a_host_wins() -> None:
    special = yaml(YAML).host("special")

    assert (special.address, special.port) == ("10.0.0.9", 2222)
    assert (special.user, special.sudo, special.chaos) == ("root", True, "refused")


def test_planes_are_merged_by_key_and_rails_by_name() -> None:
    special = yaml(YAML).host("special")

    assert special.control is not None
    assert (special.control.device, special.control.address) == ("ctl0", "10.1.0.9")
    assert [rail.name for rail in special.rails] == ["rail0", "rail1"]
    assert special.rails[1].device == "eth2"
    assert special.rails[1].address == "10.2.0.9"
    assert special.rails[1].subnet == "10.2.0.0/24"


def test_no_rails_are_none_whatever_the_group_has() -> None:
    inventory = yaml(
        "all:\n  vars: {rails: [{name: r, device: eth1}]}\n"
        "  hosts: {a: {rails: []}, b: }\n"
    )

    assert inventory.host("a").rails == ()
    assert len(inventory.host("b").rails) == 1


def test_paths_are_relative_to_the_file() -> None:
    assert yaml(YAML).host("node01").key_file == Path("/etc/site/keys/id")


def test_ini_says_the_same_as_yaml() -> None:
    inventory = ini(INI)
    special = inventory.host("special")

    assert inventory.groups["stores"] == ("node01", "node02", "node03", "special")
    assert inventory.groups["racks"] == inventory.groups["stores"]
    assert (special.port, special.user, special.sudo) == (2222, "root", True)
    assert special.rails[0].gpu == 0
    assert (special.chaos, special.cohort) == ("allowed", "8")
    assert inventory.host("loner").roles == ("master",)
    assert inventory.host("loner").user == "moon"
    assert inventory.groups["ungrouped"] == ("loner",)


def test_a_mac_address_stays_text() -> None:
    text = one_host("rails: [{name: r, mac: 52:54:00:12:34:56}]")

    assert yaml(text).host("n1").rails[0].mac == "52:54:00:12:34:56"


def test_anchors_and_merge_keys_are_understood() -> None:
    text = (
        "all:\n  vars:\n    control: &c {device: ctl0}\n"
        "  hosts:\n    n1:\n      control: {<<: *c, address: 10.0.0.1}\n"
    )
    control = yaml(text).host("n1").control

    assert control is not None
    assert (control.device, control.address) == ("ctl0", "10.0.0.1")


def test_fields_may_be_prefixed_for_files_that_ansible_reads_too() -> None:
    text = one_host("moonquake_chaos: allowed, moonquake_roles: [store]")
    node = yaml(text).host("n1")

    assert (node.chaos, node.roles) == ("allowed", ("store",))


def test_names_that_only_look_like_ours_can_be_set_aside() -> None:
    text = "all:\n  vars: {ignore_vars: [port]}\n  hosts: {n1: {port: http}}\n"

    assert yaml(text).host("n1").port == 22


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("chaos: yes please", ["hosts.yaml:3", "host n1", "chaos", "yes please",
                               "'allowed' or 'refused'"]),
        ("ansible_port: 70000", ["ansible_port = 70000", "65535"]),
        ("ansible_port: ssh", ["ansible_port", "'ssh'", "number"]),
        ("ansible_host: 'a b'", ["ansible_host", "'a b'", "host name"]),
        ("ansible_host: -oProxyCommand=x", ["ansible_host", "host name"]),
        ("ansible_user: 'x; id'", ["ansible_user", "x; id"]),
        ("ansible_user: -l", ["ansible_user"]),
        ("ansible_python_interpreter: 'python3 -c x'", ["ansible_python_interpreter"]),
        ("rails: [{name: r, device: 'a/../b'}]", ["rails[0].device", "a/../b"]),
        ("rails: [{name: r}]", ["rails[0]", "device, a bdf or a mac"]),
        ("rails: [{name: r, bdf: 3b:00.0}]", ["rails[0].bdf", "0000:3b:00.0"]),
        ("rails: [{name: r, device: e, address: 10.0.0.1/33}]", ["rails[0]"]),
        ("rails: [{name: r, device: e, address: 10.0.0.1, subnet: 10.1.0.0/24}]",
         ["rails[0]", "10.0.0.1", "10.1.0.0/24"]),
        ("rails: [{name: r, device: e, colour: red}]", ["rails[0].colour", "no such"]),
        ("rails: [{name: r, device: e}, {name: s, device: e}]", ["rails", "same dev"]),
        ("processes: {store: {}}", ["processes.store", "exactly one of"]),
        ("processes: {store: {systemd: '--now x'}}", ["processes.store.systemd"]),
        ("processes: {store: {pid_file: x.pid}}", ["pid_file", "absolute"]),
        ("metrics_ports: [9100, 0]", ["metrics_ports[1] = 0", "number"]),
        ("scratch: tmp", ["scratch = 'tmp'", "absolute"]),
        ("roles: ['$(id)']", ["roles[0]", "$(id)"]),
        ("choas: allowed", ["choas", "no such field", "write chaos"]),
        ("moonquake_frob: 1", ["moonquake_frob", "no such field"]),
        ("protected: [x]", ["protected", "whole inventory", "vars of all"]),
        ("ansible_user: '{{ admin }}'", ["ansible_user", "templates"]),
        ("ansible_user: !vault x", ["ansible_user", "encrypted"]),
        ("ansible_connection: local", ["ansible_connection", "ssh"]),
        ("ansible_become_method: su", ["ansible_become_method", "sudo"]),
        ("ansible_ssh_common_args: '-o ProxyJump=x'", ["ansible_ssh_common_args",
                                                       "directly"]),
        ("ansible_user: a, ansible_ssh_user: b", ["ansible_ssh_user", "ansible_user"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_place(line: str, words: list[str]) -> None:
    message = complaint(one_host(line))

    assert [
        word for word in ["hosts.yaml:3", "n1", *words] if word not in message
    ] == []
    assert "; " in message


@pytest.mark.parametrize("name", ["ansible_password", "ansible_become_pass"])
def test_a_password_is_refused_and_not_repeated(name: str) -> None:
    message = complaint(one_host(f"{name}: hunter2-hunter2"))

    assert name in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["lists 0 hosts"]),
        ("all: [a, b]", ["group all is not a mapping"]),
        ("all:\n  hosts: [a, b]", ["hosts.yaml:2", "not a mapping", "as a key"]),
        ("all:\n  hosts:\n    a: 5", ["hosts.yaml:3", "host a is not a mapping"]),
        ("all:\n  host: {a: }", ["hosts.yaml:2", "host", "hosts, children and vars"]),
        ("all:\n  hosts:\n    a:\n    a:", ["hosts.yaml:4", "stands twice"]),
        ("all:\n  hosts:\n    a[3:1]:", ["hosts.yaml:3", "a[3:1]", "ends before"]),
        ("all:\n  hosts:\n    'a b':", ["hosts.yaml:3", "a b"]),
        ("all:\n\thosts:", ["hosts.yaml:2", "not the YAML"]),
        ("all: {hosts: {a: {x: !!python/object/apply:os.system [id]}}}", ["python"]),
        ("a: &a {children: {b: *a}}", ["nested too deep"]),
        ("a: {children: {b: {children: {a: }}}, hosts: {x: }}", ["contains itself"]),
        ("all:\n  hosts:\n    a: {ansible_host: 10.0.0.1}\n"
         "    b: {ansible_host: 10.0.0.1}", ["a and b share", "10.0.0.1"]),
        ("all:\n  vars: {protected: [x y]}\n  hosts: {a: }",
         ["hosts.yaml:2", "protected", "x y"]),
        ("all:\n  vars: {fault_ttl_max_s: 0}\n  hosts: {a: }",
         ["hosts.yaml:2", "fault_ttl_max_s"]),
        ("g: {vars: {lever: /x}, hosts: {a: }}", ["lever", "group g"]),
        ("g: {hosts: {a: {cohort: x}}}\nh: {hosts: {a: {cohort: y}}}",
         ["hosts.yaml:2", "host a", "cohort", "line 1"]),
    ],
)  # fmt: skip
def test_a_yaml_file_of_another_shape_is_refused(text: str, words: list[str]) -> None:
    message = complaint(text)

    assert [word for word in words if word not in message] == []


def test_aliases_that_multiply_are_stopped_early() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]

    assert "stands for too much" in complaint("\n".join(lines))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[stores", ["hosts.ini:1", "not a section"]),
        ("[stores:hosts:x]", ["hosts.ini:1", "not a section"]),
        ("[a]\nn1 key", ["hosts.ini:2", "host n1", "key=value"]),
        ("[a]\nn1 user='x", ["hosts.ini:2", "close the quote"]),
        ("[a]\nn1 port=x", ["hosts.ini:2", "host n1", "port", "'x'"]),
        ("[a]\nn1\n[b:vars]\nuser=x", ["hosts.ini:3", "no group b"]),
        ("[a]\nn1\n[b:children]\nstors", ["hosts.ini:4", "no group stors"]),
        ("[a]\nn1\n[a:vars]\nuser", ["hosts.ini:4", "key = value"]),
        ("[a]\nn1\n[a:vars]\nuser=x\nuser=y", ["hosts.ini:5", "twice"]),
        ("[a]\nn[1:", ["hosts.ini:2", "unmatched"]),
        ("[a]\nfe80::1", ["hosts.ini:2", "fe80::1"]),
        ("[a]\nn1\n[a:children]\nb\n[b]\n[b:children]\na", ["contains itself"]),
    ],
)
def test_an_ini_file_of_another_shape_is_refused(text: str, words: list[str]) -> None:
    message = complaint(text, "ini")

    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"#!/usr/bin/python3\n", ["is a program", "ansible-inventory"]),
        (b"\xff\xfe", ["UTF-8"]),
        (None, ["cannot be read", "No such file"]),
    ],
)
def test_a_file_that_is_no_inventory_is_refused(
    content: bytes | None, words: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "hosts"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InventoryError) as caught:
        load(file)

    assert [word for word in [str(file), *words] if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("text", "host"), [("all:\n  hosts: {n1: }", "n1"), ("n2", "n2")]
)
def test_a_file_without_suffix_is_known_by_its_first_line(
    text: str, host: str, tmp_path: Path
) -> None:
    file = tmp_path / "hosts"
    file.write_text(f"# a comment\n{text}\n")

    assert load(file).hosts[0].name == host


@pytest.mark.parametrize("name", ["local.yaml", "staging.example.yaml"])
def test_the_examples_load(name: str) -> None:
    inventory = load(ROOT / "inventory" / name)

    assert inventory.hosts


def test_in_the_example_only_opted_in_hosts_may_be_broken() -> None:
    inventory = load(ROOT / "inventory" / "staging.example.yaml")
    free = [host.name for host in inventory.hosts if not inventory.why_not(host)]

    assert free == ["master-1", "prefill-01", "prefill-02"]


def test_hundreds_of_hosts_with_eight_rails_load() -> None:
    lines = ["all:", "  hosts:"]
    for n in range(200):
        lines.append(f"    n{n}:")
        lines.append("      rails:")
        lines += [
            f"        - {{name: rail{r}, device: eth{r}, address: 10.{r}.1.{n}}}"
            for r in range(8)
        ]

    assert len(yaml("\n".join(lines)).hosts) == 200


PIECES = st.lists(
    st.sampled_from(
        ["all", ":", "\n", "  ", "hosts", "vars", "children", "- ", "{", "}", "[", "]",
         "n[1:3]", "rails", "*a", "&a", "<<", "!vault", "null", "1", "=", "'", '"', "#",
         "ansible_host", "processes", "chaos", "expect", ",", "\0", "é", "0x", "~"]
    ),
    max_size=40,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(pieces=PIECES, suffix=st.sampled_from(["yaml", "ini"]))
def test_any_text_is_an_inventory_or_a_complaint(
    pieces: list[str], suffix: str
) -> None:
    try:
        said = str(parse("".join(pieces), Path(f"hosts.{suffix}")).hosts[0].name)
    except InventoryError as error:
        said = str(error)

    assert "\n" not in said


DOCS = (ROOT / "docs" / "inventory.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("form", ["yaml", "ini"])
def test_the_examples_of_the_docs_load_and_say_what_they_should(form: str) -> None:
    inventory = parse(DOCS.split(f"```{form}\n")[1].split("```")[0], Path(f"x.{form}"))

    assert len(inventory.hosts) == 16
    assert inventory.hosts[0].roles == ("store-0", "engine-0")
    assert not inventory.why_not(inventory.hosts[0])


def test_the_docs_name_every_field_and_every_way_to_fail() -> None:
    fields = {*HostEntry.model_fields, *Inventory.model_fields}
    names = fields - {"name", "groups", "file", "hosts"} | set(SshProblem)

    assert sorted(name for name in names if f"`{name}`" not in DOCS) == []
