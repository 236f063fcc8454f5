"""What several groups read: links, addresses, rules, routes, RDMA ports in sysfs."""

import json

FOREVER = 4294967295


def _address(family, local, prefixlen, scope, label=""):
    found = {
        "family": family,
        "local": local,
        "prefixlen": prefixlen,
        "scope": scope,
        "valid_life_time": FOREVER,
        "preferred_life_time": FOREVER,
    }
    return {**found, "label": label} if label else found


def _link(name, index, mac, mtu, addresses, parent=""):
    link = {
        "ifindex": index,
        "ifname": name,
        "flags": ["BROADCAST", "MULTICAST", "UP", "LOWER_UP"],
        "mtu": mtu,
        "qdisc": "mq",
        "operstate": "UP",
        "group": "default",
        "link_type": "ether",
        "address": mac,
        "broadcast": "ff:ff:ff:ff:ff:ff",
        "addr_info": addresses,
    }
    return {**link, "parentbus": "pci", "parentdev": parent} if parent else link


def _links(plan):
    loopback = {
        **_link("lo", 1, "00:00:00:00:00:00", 65536, []),
        "flags": ["LOOPBACK", "UP", "LOWER_UP"],
        "operstate": "UNKNOWN",
        "link_type": "loopback",
        "addr_info": [_address("inet", "127.0.0.1", 8, "host", "lo")],
    }
    management = _link(
        plan.mgmt,
        plan.mgmt_ifindex,
        plan.mgmt_mac,
        1500,
        [_address("inet", plan.ip, 24, "global", plan.mgmt)],
        "0000:05:00.0",
    )
    rails = [
        _link(
            rail.netdev,
            rail.ifindex,
            rail.mac,
            4200,
            [
                _address("inet", rail.ip, rail.prefixlen, "global", rail.netdev),
                _address("inet6", rail.link_local, 64, "link"),
            ],
            rail.bdf,
        )
        for rail in plan.rails
    ]
    high, low = divmod(plan.index, 250)
    address = f"203.0.{113 + high}.{low + 1}"
    bridge = {
        **_link(
            "br-ex",
            80,
            f"02:00:5e:fe:{high + 1:02x}:{low + 1:02x}",
            9000,
            [_address("inet", address, 24, "global", "br-ex")],
        ),
        "operstate": "UNKNOWN",
        "linkinfo": {"info_kind": "openvswitch"},
    }
    return [loopback, management, *rails, bridge]


def _rules(plan):
    own = [
        {"priority": 1000 + rail.index, "src": rail.ip, "table": rail.table}
        for rail in plan.rails
    ]
    return [
        {"priority": 0, "src": "all", "table": "local"},
        *own,
        {"priority": 32766, "src": "all", "table": "main"},
        {"priority": 32767, "src": "all", "table": "default"},
    ]


def _connected(dev, network, source, table=""):
    row = {
        "dst": network,
        "dev": dev,
        "protocol": "kernel",
        "scope": "link",
        "prefsrc": source,
        "flags": [],
    }
    return {**row, "table": table} if table else row


def _default(dev, gateway, table=""):
    row = {
        "dst": "default",
        "gateway": gateway,
        "dev": dev,
        "protocol": "static",
        "flags": [],
    }
    return {**row, "table": table} if table else row


def _local(dev, ip, network):
    base = {
        "dev": dev,
        "table": "local",
        "protocol": "kernel",
        "prefsrc": ip,
        "flags": [],
    }
    broadcast = network.rsplit(".", 1)[0] + ".255"
    return [
        {"type": "local", "dst": ip, "scope": "host", **base},
        {"type": "broadcast", "dst": broadcast, "scope": "link", **base},
    ]


def table_rows(rail, named=True):
    """The routes of a rail's own table."""
    table = rail.table if named else ""
    return [
        _default(rail.netdev, rail.gateway, table),
        _connected(rail.netdev, rail.network, rail.ip, table),
    ]


def _routes(plan):
    own = [row for rail in plan.rails for row in table_rows(rail)]
    main = [
        _default(plan.mgmt, plan.mgmt_gateway),
        _connected(plan.mgmt, "192.0.2.0/24", plan.ip),
        *[_connected(rail.netdev, rail.network, rail.ip) for rail in plan.rails],
    ]
    local = [
        {
            "type": "local",
            "dst": "127.0.0.0/8",
            "dev": "lo",
            "table": "local",
            "protocol": "kernel",
            "scope": "host",
            "prefsrc": "127.0.0.1",
            "flags": [],
        },
        *_local(plan.mgmt, plan.ip, "192.0.2.0/24"),
        *[
            row
            for rail in plan.rails
            for row in _local(rail.netdev, rail.ip, rail.network)
        ],
    ]
    return [*own, *main, *local]


def _neighbours(plan):
    rows = [
        {
            "dst": plan.mgmt_gateway,
            "dev": plan.mgmt,
            "lladdr": "02:00:5e:fe:00:fe",
            "state": ["REACHABLE"],
        }
    ]
    for rail in plan.rails:
        rows.append(
            {
                "dst": rail.gateway,
                "dev": rail.netdev,
                "lladdr": f"02:00:5e:{rail.index:02x}:00:fe",
                "state": ["REACHABLE"],
            }
        )
        for peer in plan.peers:
            there = peer.rails[rail.index]
            rows.append(
                {
                    "dst": there.ip,
                    "dev": rail.netdev,
                    "lladdr": there.mac,
                    "state": ["STALE"],
                }
            )
    return rows


def _rdma_links(plan):
    return [
        {
            "ifindex": rail.index,
            "ifname": rail.device,
            "port": 1,
            "state": "ACTIVE",
            "physical_state": "LINK_UP",
            "netdev": rail.netdev,
            "netdev_index": rail.ifindex,
        }
        for rail in plan.rails
    ]


def _rdma_devices(plan):
    return [
        {
            "ifindex": rail.index,
            "ifname": rail.device,
            "node_type": "ca",
            "fw": plan.firmware,
            "node_guid": rail.guid,
            "sys_image_guid": rail.guid,
            "adaptive-moderation": "on",
        }
        for rail in plan.rails
    ]


def cmds(plan):
    single = {
        f"ip -j route show table {rail.table}": json.dumps(
            table_rows(rail, named=False)
        )
        for rail in plan.rails
    }
    return {
        "ip -j -d addr": json.dumps(_links(plan)),
        "ip -j -4 rule": json.dumps(_rules(plan)),
        "ip -j -6 rule": json.dumps(
            [
                {"priority": 0, "src": "all", "table": "local"},
                {"priority": 32766, "src": "all", "table": "main"},
            ]
        ),
        "ip -j -4 route show table all": json.dumps(_routes(plan)),
        "ip -j -6 route show table all": json.dumps(
            [
                {
                    "dst": "fe80::/64",
                    "dev": rail.netdev,
                    "protocol": "kernel",
                    "metric": 256,
                    "flags": [],
                    "pref": "medium",
                }
                for rail in plan.rails
            ]
        ),
        **single,
        "ip -j neigh": json.dumps(_neighbours(plan)),
        "rdma -j -d link": json.dumps(_rdma_links(plan)),
        "rdma -j -d dev": json.dumps(_rdma_devices(plan)),
        "dmesg -J": json.dumps(
            {
                "dmesg": [
                    {"pri": 5, "time": 0.0, "msg": f"Linux version {plan.kernel}"},
                    {
                        "pri": 6,
                        "time": 1.2,
                        "msg": "iommu: Default domain type: Passthrough",
                    },
                    *[
                        {
                            "pri": 6,
                            "time": 5.0 + rail.index,
                            "msg": f"mlx5_core {rail.bdf}: firmware {plan.firmware}",
                        }
                        for rail in plan.rails
                    ],
                ]
            }
        ),
    }


def _rdma_sysfs(plan, rail):
    base = f"/sys/class/infiniband/{rail.device}"
    port = f"{base}/ports/1"
    found = {
        f"{base}/device": {"link": f"../../../{rail.bdf}"},
        f"{base}/fw_ver": f"{plan.firmware}\n",
        f"{base}/board_id": f"{plan.psid}\n",
        f"{base}/hca_type": "MT4129\n",
        f"{base}/node_guid": f"{rail.guid}\n",
        f"{base}/node_type": "1: CA\n",
        f"{port}/state": "4: ACTIVE\n",
        f"{port}/phys_state": "5: LinkUp\n",
        f"{port}/rate": "400 Gb/sec (4X NDR)\n",
        f"{port}/link_layer": "Ethernet\n",
    }
    for index, gid, kind in rail.gids:
        found[f"{port}/gids/{index}"] = f"{gid}\n"
        found[f"{port}/gid_attrs/types/{index}"] = f"{kind}\n"
        found[f"{port}/gid_attrs/ndevs/{index}"] = f"{rail.netdev}\n"
    for index in (4, 5, 6, 7):
        found[f"{port}/gids/{index}"] = "0000:0000:0000:0000:0000:0000:0000:0000\n"
        found[f"{port}/gid_attrs/types/{index}"] = {"errno": "EINVAL"}
        found[f"{port}/gid_attrs/ndevs/{index}"] = {"errno": "EINVAL"}
    return found


def _net_sysfs(name, mac, mtu, speed, bdf):
    base = f"/sys/class/net/{name}"
    return {
        f"{base}/device": {"link": f"../../../{bdf}"},
        f"{base}/operstate": "up\n",
        f"{base}/carrier": "1\n",
        f"{base}/carrier_changes": "2\n",
        f"{base}/mtu": f"{mtu}\n",
        f"{base}/speed": f"{speed}\n",
        f"{base}/address": f"{mac}\n",
    }


def _pci_sysfs(bdf, numa):
    base = f"/sys/bus/pci/devices/{bdf}"
    return {
        f"{base}/numa_node": f"{numa}\n",
        f"{base}/vendor": "0x15b3\n",
        f"{base}/device": "0x1021\n",
        f"{base}/iommu_group/type": "identity\n",
        f"{base}/current_link_speed": "32.0 GT/s PCIe\n",
        f"{base}/max_link_speed": "32.0 GT/s PCIe\n",
        f"{base}/current_link_width": "16\n",
        f"{base}/max_link_width": "16\n",
        f"{base}/sriov_numvfs": "0\n",
        f"{base}/sriov_totalvfs": "8\n",
    }


def files(plan):
    found = {
        "/sys/class/infiniband": tuple(rail.device for rail in plan.rails),
        "/sys/class/net": ("lo", plan.mgmt, *[rail.netdev for rail in plan.rails]),
        "/proc/cmdline": (
            f"BOOT_IMAGE=/vmlinuz-{plan.kernel} root=UUID={plan.index:08x} ro"
            " intel_iommu=on iommu=pt\n"
        ),
        f"/proc/{plan.pid}/cmdline": "/usr/local/bin/mooncake_client\0--port=50052\0",
        **_net_sysfs(plan.mgmt, plan.mgmt_mac, 1500, 25000, "0000:05:00.0"),
    }
    for rail in plan.rails:
        found |= _rdma_sysfs(plan, rail)
        found |= _net_sysfs(rail.netdev, rail.mac, 4200, 400000, rail.bdf)
        found |= _pci_sysfs(rail.bdf, rail.numa)
    return found
