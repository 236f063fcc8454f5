"""Acts for `preflight --active` on one node: listens on its rails, or tries its peers.

One file, standard library, Python 3.6 grammar: it is sent over the standard input of
`python3 -` like the collector, and uses pyverbs where the distribution has it. It
writes nothing. Its one argument is a plan in JSON, and nothing wider is done:

    {"act": "listen", "name": HOST, "token": TEXT, "rails": [ADDRESS], "seconds": N,
     "ports": [PORT or [FIRST, LAST]], "most": N}

binds each port on each address (of a range one that is free), prints one line
`###READY [{"address", "port", "error"}]`, greets whoever connects, and ends after so
many seconds or connections, or when nobody reads its output any more.

    {"act": "try", "name": HOST, "token": TEXT, "seconds": N, "inside": [ADDRESS] or
     null, "nics": [DEVICE], "pairs": [{"from", "to", "port", "peer", "ours", "rc"}]}

connects from each rail to each target and tells what came of it: `cmds` as in a facts
document (`connect TARGET:PORT from SOURCE`), framed like the collector's output. A pair
with `rc` also makes a reliable connection (RC) between the rails over RoCE v2: the two
ends tell each other queue pair, GID and packet number over the TCP connection, send a
message there and back, and one reads the other's memory. `inside` does that between
the rails of this node (`null`: not at all; `[]`: every port that is up).
"""

import errno
import glob
import hashlib
import hmac
import ipaddress
import json
import os
import random
import select
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

CONNECT_S = 3.0
GREETING_S = 2.0
TALK_S = 8.0
EXCHANGE_S = 4.0
WORKERS = 16
MAX_ADDRESSES = 64
MAX_PAIRS = 512
MAX_PLACES = 16
MAX_LINE = 4096
PORT_TRIES = 16
BYTES = 8192
"""Of a message: two packets of the largest path MTU."""
IB = "/sys/class/infiniband"
RECEIVED, SENT, READ = 1, 2, 3
UNTRIED = 2
WC_RETRY = 12
WC_TEXT = {
    4: "local protection error",
    5: "flushed",
    9: "remote invalid request",
    10: "remote access error",
    12: "transport retry counter exceeded",
    13: "RNR retry counter exceeded",
}

Entry = Dict[str, Any]
Place = Dict[str, Any]
Row = Dict[str, Any]


class Untried(Exception):
    """An exchange could not be tried: that says nothing of the path."""


class Failed(Exception):
    """An exchange failed; `errno` says how, 0 never."""

    def __init__(self, number: int, text: str) -> None:
        Exception.__init__(self, text)
        self.errno = number


def left(end: float) -> float:
    return max(0.0, end - time.monotonic())


def spelled(address: str, port: int) -> str:
    """HOST:PORT, with brackets around IPv6."""
    return "%s:%d" % ("[%s]" % address if ":" in address else address, port)


def family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def name_of(error: OSError) -> str:
    if isinstance(error, socket.timeout):
        return "ETIMEDOUT"
    return errno.errorcode.get(error.errno or 0, str(error) or "EIO")


def proof(plan: Entry, name: str, address: str, port: int) -> str:
    """What only a listener of this run, on this node and port, says."""
    text = "%s %s %s" % (plan["token"], name, spelled(address, port))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


# Listening


class Listener(object):
    """Listens on the rails of this node until its time or its number is up."""

    def __init__(self, plan: Entry) -> None:
        self.plan = plan
        self.end = time.monotonic() + float(plan["seconds"])
        self.most = int(plan["most"])
        self.doors = {}  # type: Dict[int, Any]
        self.guests = {}  # type: Dict[int, Tuple[Any, bytearray]]
        self.children = []  # type: List[int]

    def open(self) -> List[Entry]:
        """Binds what was asked for; tells of each port, with the errno if it failed."""
        return [
            self._bind(address, ports)
            for address in self.plan["rails"][:MAX_ADDRESSES]
            for ports in self.plan["ports"]
        ]

    def _bind(self, address: str, ports: Any) -> Entry:
        every = [ports] if isinstance(ports, int) else self._some(*ports)
        port, problem = every[0], ""
        for port in every:
            problem = self._bound(address, port)
            if problem != "EADDRINUSE":
                break
        return {"address": address, "port": port, "error": problem}

    def _some(self, first: int, last: int) -> List[int]:
        """Some ports of a range, others in every run: a held one is passed over."""
        chosen = random.Random(self.plan["token"]).sample(
            range(first, last + 1), min(PORT_TRIES, last + 1 - first)
        )
        return list(chosen)

    def _bound(self, address: str, port: int) -> str:
        door = socket.socket(family(address), socket.SOCK_STREAM)
        try:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            door.bind((address, port))
            door.listen(64)
            door.setblocking(False)
        except OSError as error:
            door.close()
            return name_of(error)
        self.doors[door.fileno()] = door
        return ""

    def serve(self) -> None:
        watch = select.poll()
        watch.register(sys.stdout.fileno(), 0)
        for number in self.doors:
            watch.register(number, select.POLLIN)
        while left(self.end) > 0:
            for number, _ in watch.poll(min(1000.0, left(self.end) * 1000 + 1)):
                if number in self.doors:
                    self._admit(self.doors[number], watch)
                elif number in self.guests:
                    self._hear(number, watch)
                else:
                    return  # nobody reads what we print: the other side is gone
            if self.most <= 0 and self.doors:
                self._shut(watch)
            self._reap()

    def _shut(self, watch: Any) -> None:
        """As many came as may; who is here is served on. From now on we refuse."""
        for number, door in self.doors.items():
            watch.unregister(number)
            door.close()
        self.doors.clear()
        tell("###FULL")

    def close(self) -> None:
        for door in self.doors.values():
            door.close()
        for guest, _ in self.guests.values():
            guest.close()
        for child in self.children:
            _kill(child)
        until = time.monotonic() + 0.5
        while self.children and left(until) > 0:
            self._reap()
            time.sleep(0.01)

    def _admit(self, door: Any, watch: Any) -> None:
        try:
            guest, seen = door.accept()
        except OSError:
            return
        self.most -= 1
        address, port = door.getsockname()[:2]
        said = proof(self.plan, self.plan["name"], address, port)
        guest.setblocking(False)
        try:
            guest.send(("preflight %s %s\n" % (said, seen[0])).encode())
        except OSError:
            guest.close()
            return
        self.guests[guest.fileno()] = (guest, bytearray())
        watch.register(guest.fileno(), select.POLLIN)

    def _hear(self, number: int, watch: Any) -> None:
        """Reads on; a whole line is a request, an end is an end."""
        guest, heard = self.guests[number]
        try:
            chunk = guest.recv(MAX_LINE)
        except OSError:
            chunk = b""
        heard.extend(chunk)
        if chunk and b"\n" not in heard and len(heard) < MAX_LINE:
            return
        watch.unregister(number)
        del self.guests[number]
        line = bytes(heard).partition(b"\n")[0]
        if chunk and self._is_ours(line):
            self.children.append(self._answer(guest, json.loads(line.decode())))
        guest.close()

    def _is_ours(self, line: bytes) -> bool:
        try:
            asked = json.loads(line.decode())
            token = str(asked["token"])
        except (ValueError, KeyError, TypeError):
            return False
        return hmac.compare_digest(token.encode(), str(self.plan["token"]).encode())

    def _answer(self, guest: Any, asked: Entry) -> int:
        """A process of its own: verbs may block, and greetings must not wait."""
        child = os.fork()
        if child:
            return child
        try:
            signal.alarm(int(min(left(self.end), 3 * TALK_S)) + 1)
            for door in self.doors.values():
                door.close()
            guest.settimeout(TALK_S)
            answer(self.plan, guest, asked)
        finally:
            os._exit(0)

    def _reap(self) -> None:
        for child in list(self.children):
            try:
                ended = os.waitpid(child, os.WNOHANG)[0]
            except OSError:
                ended = child
            if ended:
                self.children.remove(child)


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _kill(child: int) -> None:
    try:
        os.kill(child, signal.SIGKILL)
    except OSError:
        pass  # it has ended by itself


# TCP


def greeted(pair: Entry, plan: Entry) -> Tuple[Any, str]:
    """A connection from rail to rail, and the address that the peer saw.

    Raises OSError as the kernel refused it, Untried where it says nothing of the path.
    """
    wire = socket.socket(family(pair["to"]), socket.SOCK_STREAM)
    try:
        try:
            wire.bind((pair["from"], 0))
        except OSError as error:
            told = "no connection from %s: %s" % (pair["from"], name_of(error))
            raise Untried(told) from None
        wire.settimeout(CONNECT_S)
        wire.connect((pair["to"], pair["port"]))
        seen = _greeting(wire, pair, plan) if pair["ours"] else ""
    except BaseException:
        wire.close()
        raise
    return wire, seen


def _greeting(wire: Any, pair: Entry, plan: Entry) -> str:
    wire.settimeout(GREETING_S)
    try:
        words = line_of(wire).split()
    except OSError:
        words = []
    if not words:
        raise Untried("connected, and nobody greeted")
    wanted = proof(plan, pair["peer"], pair["to"], pair["port"])
    if len(words) != 3 or words[:2] != ["preflight", wanted]:
        raise ConnectionError("another end answered")
    return words[2]


def line_of(wire: Any) -> str:
    """One line, without its end; "" where the connection ended before it did."""
    heard = bytearray()
    while b"\n" not in heard and len(heard) < MAX_LINE:
        chunk = wire.recv(MAX_LINE)
        if not chunk:
            return ""
        heard.extend(chunk)
    return bytes(heard).partition(b"\n")[0].decode("utf-8", "replace")


def handshake(pair: Entry, plan: Entry, end: float) -> Entry:
    """One TCP connection as an entry: rc 0 connected, 1 failed, 2 not tried."""
    began = time.monotonic()
    rc, stdout, stderr = 0, "", ""
    if left(end) < CONNECT_S:
        rc, stderr = UNTRIED, "there was no time for it"
    else:
        try:
            wire, seen = greeted(pair, plan)
            wire.close()
            stdout = "connected\n"
            if pair["ours"]:
                stdout = "connected, seen as %s, by %s\n" % (seen, pair["peer"])
        except Untried as error:
            rc, stderr = UNTRIED, str(error)
        except OSError as error:
            rc, stderr = 1, name_of(error)
    return {
        "rc": rc,
        "stdout": stdout,
        "stderr": stderr,
        "ms": int((time.monotonic() - began) * 1000),
        "timeout": False,
        "bytes": len(stdout.encode()),
    }


def handshakes(pairs: List[Entry], plan: Entry, end: float) -> Dict[str, Entry]:
    lines = [
        "connect %s from %s" % (spelled(p["to"], p["port"]), p["from"]) for p in pairs
    ]
    with ThreadPoolExecutor(WORKERS) as pool:
        told = pool.map(lambda pair: handshake(pair, plan, end), pairs)
        return dict(zip(lines, told))


# RDMA


def load_verbs() -> Any:
    """The modules of pyverbs. Raises Untried where they cannot be imported."""
    try:
        from pyverbs import (  # type: ignore[import-not-found]
            addr,
            cq,
            device,
            mr,
            pd,
            qp,
            wr,
        )

        try:
            from pyverbs import enums
        except ImportError:  # its name since rdma-core 56
            from pyverbs import libibverbs_enums as enums
    except Exception as error:
        raise Untried("%s: %s" % (type(error).__name__, error)) from None

    class Verbs(object):
        pass

    found = Verbs()  # type: Any
    for module in (addr, cq, device, mr, pd, qp, wr):
        setattr(found, module.__name__.rpartition(".")[2], module)
    found.enums = enums
    return found


def gid_text(address: str) -> str:
    """The GID of an address in full, as sysfs spells it."""
    text = address.partition("%")[0] if ":" in address else "::ffff:" + address
    return str(ipaddress.IPv6Address(text).exploded)


def places(root: str) -> Iterator[Place]:
    """Every RoCE v2 GID of a port that is up: device, port, index, gid."""
    for path in sorted(glob.glob(root + IB + "/*/ports/*/gids/*"), key=_natural):
        port, index = path.rpartition("/gids/")[::2]
        kind = _read("%s/gid_attrs/types/%s" % (port, index))
        if kind == "RoCE v2" and "ACTIVE" in _read(port + "/state"):
            device, number = port.rpartition("/ports/")[::2]
            yield {
                "device": device.rpartition("/")[2],
                "port": int(number),
                "index": int(index),
                "gid": _read(path),
            }


def place_of(address: str, root: str) -> Optional[Place]:
    """The GID that holds an address."""
    wanted = gid_text(address)
    return next((each for each in places(root) if each["gid"] == wanted), None)


def inside(plan: Entry, root: str) -> List[Place]:
    """One place a port: of the rails that are named, else of the devices."""
    asked = plan.get("inside")
    if asked is None:
        return []
    wanted = {gid_text(address) for address in asked}
    nics = set(plan["nics"])
    found = {}  # type: Dict[Tuple[str, int], Place]
    for each in places(root):
        named = each["gid"] in wanted if wanted else not each["gid"].startswith("fe80")
        if named and (wanted or each["device"] in nics):
            found.setdefault((each["device"], each["port"]), each)
    return list(found.values())[:MAX_PLACES]


def _natural(path: str) -> Tuple[str, int]:
    head, _, last = path.rpartition("/")
    return head, int(last) if last.isdigit() else 0


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read(256).strip()
    except OSError:
        return ""


class End(object):
    """One RC queue pair and its memory: own bytes, what is received, what is read."""

    def __init__(self, verbs: Any, place: Place) -> None:
        self.verbs = verbs
        self.place = place
        self.held = []  # type: List[Any]
        self.came = set()  # type: Any
        self.peer = {}  # type: Entry
        try:
            self._open()
        except Exception as error:
            self.close()
            told = "%s: %s" % (place["device"], error)
            raise Untried(told) from None

    def _open(self) -> None:
        verbs, enums = self.verbs, self.verbs.enums
        context = self._hold(verbs.device.Context(name=self.place["device"]))
        self.mtu = int(context.query_port(self.place["port"]).active_mtu)
        domain = self._hold(verbs.pd.PD(context))
        self.cq = self._hold(verbs.cq.CQ(context, 16))
        access = enums.IBV_ACCESS_LOCAL_WRITE | enums.IBV_ACCESS_REMOTE_READ
        self.mr = self._hold(verbs.mr.MR(domain, 3 * BYTES, access))
        init = verbs.qp.QPInitAttr(
            qp_type=enums.IBV_QPT_RC,
            scq=self.cq,
            rcq=self.cq,
            cap=verbs.qp.QPCap(max_send_wr=4, max_recv_wr=4),
        )
        self.qp = self._hold(verbs.qp.QP(domain, init))
        self.psn = random.SystemRandom().getrandbits(24)
        self.own = os.urandom(64) * (BYTES // 64)
        self.mr.write(self.own, BYTES, 0)

    def _hold(self, thing: Any) -> Any:
        self.held.append(thing)
        return thing

    def close(self) -> None:
        while self.held:
            try:
                self.held.pop().close()
            except Exception:
                pass  # the process ends soon, and the kernel takes all back

    def told(self) -> Entry:
        """What the other end needs to know."""
        return {
            "device": self.place["device"],
            "qpn": self.qp.qp_num,
            "psn": self.psn,
            "gid": self.place["gid"],
            "mtu": self.mtu,
            "rkey": self.mr.rkey,
            "addr": self.mr.buf,
            "sum": hashlib.sha256(self.own).hexdigest(),
        }

    def connect(self, peer: Entry) -> None:
        """RESET, INIT, RTR, RTS. The errno of RTR tells why no path was found."""
        self.peer = peer
        attributes = attributes_of(self.verbs, self.place, peer, self.mtu, self.psn)
        self._do("INIT", self.qp.to_init, attributes)
        self._do("receive", self.qp.post_recv, self._receive())
        self._do("RTR", self.qp.to_rtr, attributes)
        self._do("RTS", self.qp.to_rts, attributes)

    def send(self) -> None:
        self._do("send", self.qp.post_send, self._work(SENT, "IBV_WR_SEND", 0))

    def read(self) -> None:
        """Reads the peer's memory and compares it with what the peer said it is."""
        work = self._work(READ, "IBV_WR_RDMA_READ", 2 * BYTES)
        work.set_wr_rdma(self.peer["rkey"], self.peer["addr"])
        self._do("read", self.qp.post_send, work)
        self.wait(READ, "read")
        self._compare(2 * BYTES, "read")

    def receive(self, limit_s: float = EXCHANGE_S) -> None:
        """Waits for the peer's message; that none comes may be the peer's slowness."""
        self.wait(RECEIVED, "receive", limit_s)
        self._compare(BYTES, "receive")

    def wait(self, number: int, step: str, limit_s: float = EXCHANGE_S) -> None:
        """Waits for a completion; one that is none fails with what it tells."""
        end = time.monotonic() + limit_s
        while number not in self.came:
            count, completions = self.cq.poll(1)
            if not count:
                if left(end) <= 0 and number == RECEIVED:
                    raise Untried("no message came in time")
                if left(end) <= 0:
                    raise Failed(errno.ETIMEDOUT, "%s: no completion" % step)
                time.sleep(0.0005)
                continue
            status = int(completions[0].status)
            if status:
                told = WC_TEXT.get(status, "failed")
                code = errno.ETIMEDOUT if status == WC_RETRY else errno.EIO
                raise Failed(code, "%s: %s (status %d)" % (step, told, status))
            self.came.add(int(completions[0].wr_id))

    def _compare(self, offset: int, step: str) -> None:
        found = hashlib.sha256(self.mr.read(BYTES, offset)).hexdigest()
        if found != self.peer["sum"]:
            raise Failed(errno.EIO, "%s: other bytes than the peer holds" % step)

    def _receive(self) -> Any:
        wr = self.verbs.wr
        place = wr.SGE(self.mr.buf + BYTES, BYTES, self.mr.lkey)
        return wr.RecvWR(wr_id=RECEIVED, num_sge=1, sg=[place])

    def _work(self, number: int, opcode: str, offset: int) -> Any:
        wr, enums = self.verbs.wr, self.verbs.enums
        place = wr.SGE(self.mr.buf + offset, BYTES, self.mr.lkey)
        return wr.SendWR(
            wr_id=number,
            num_sge=1,
            sg=[place],
            opcode=getattr(enums, opcode),
            send_flags=enums.IBV_SEND_SIGNALED,
        )

    def _do(self, step: str, call: Callable[[Any], None], given: Any) -> None:
        try:
            call(given)
        except Exception as error:
            number = getattr(error, "error_code", 0)
            if not isinstance(number, int) or number <= 0:
                raise Untried("%s: %s" % (step, error)) from None
            raise Failed(number, "%s: %s" % (step, error)) from None


def attributes_of(verbs: Any, place: Place, peer: Entry, mtu: int, psn: int) -> Any:
    """All that the three transitions take; each takes its own of them.

    The path MTU is the smaller one of both ports, as both ends choose it.
    """
    route = verbs.addr.GlobalRoute(
        dgid=verbs.addr.GID(peer["gid"]), sgid_index=place["index"], hop_limit=64
    )
    found = verbs.qp.QPAttr()
    found.port_num = place["port"]
    found.pkey_index = 0
    found.qp_access_flags = verbs.enums.IBV_ACCESS_REMOTE_READ
    found.ah_attr = verbs.addr.AHAttr(gr=route, is_global=1, port_num=place["port"])
    found.path_mtu = min(mtu, int(peer["mtu"]))
    found.dest_qp_num = int(peer["qpn"])
    found.rq_psn = int(peer["psn"])
    found.max_dest_rd_atomic = 1
    found.min_rnr_timer = 12
    found.timeout = 14
    found.retry_cnt = 7
    found.rnr_retry = 6
    found.sq_psn = psn
    found.max_rd_atomic = 1
    return found


# RC exchanges: one row for a message there and back, one for a read


def rows_of(place: Place, to: str, peer: str) -> List[Row]:
    """The rows of an exchange that was not tried yet."""
    base = {"from": place["device"], "to": to, "peer": peer, "errno": None}
    told = {"error": "there was no time for it", "gid_index": place["index"]}
    return [dict(base, kind=kind, **told) for kind in ("rc-pingpong", "read")]


def settle(rows: List[Row], error: Optional[Exception]) -> bool:
    """Writes what came of the first open row; after a failure the rest is untried."""
    if error is None:
        rows[0].update(errno=0, error="")
        return True
    rows[0].update(errno=getattr(error, "errno", None), error=str(error))
    for row in rows[1:]:
        row["error"] = "%s came to nothing" % rows[0]["kind"]
    return False


def attempt(call: Callable[[], None]) -> Optional[Exception]:
    try:
        call()
    except (Failed, Untried) as error:
        return error
    except Exception as error:
        return Untried("%s: %s" % (type(error).__name__, error))
    return None


def across(plan: Entry, pair: Entry, place: Place) -> List[Row]:
    """An exchange with the same rail of a peer, whose listener takes part in it."""
    rows = rows_of(place, "", pair["peer"])
    held = []  # type: List[Any]

    def connected() -> None:
        mine = End(load_verbs(), place)
        held.append(mine)
        theirs = _agreed(plan, pair, mine, held)
        for row in rows:
            row["to"] = str(theirs["device"])
        mine.connect(theirs)
        mine.send()
        mine.wait(SENT, "send")
        mine.receive()

    try:
        if settle(rows, attempt(connected)):
            settle(rows[1:], attempt(held[0].read))
    finally:
        for each in reversed(held):
            each.close()
    return rows


def _agreed(plan: Entry, pair: Entry, mine: End, held: List[Any]) -> Entry:
    """What the peer's queue pair is; it is ready to receive when it says so."""
    try:
        wire, _ = greeted(pair, plan)
        held.append(wire)
        wire.settimeout(TALK_S)
        asked = {"token": plan["token"], "rc": mine.told()}
        wire.sendall((json.dumps(asked) + "\n").encode())
        said = json.loads(line_of(wire) or "{}")
    except (OSError, ValueError) as error:
        told = name_of(error) if isinstance(error, OSError) else str(error)
        raise Untried("no answer of %s: %s" % (pair["peer"], told)) from None
    if not isinstance(said, dict) or not isinstance(said.get("rc"), dict):
        why = said.get("untried") if isinstance(said, dict) else ""
        raise Untried("%s: %s" % (pair["peer"], why or "no answer"))
    return dict(said["rc"])


def answer(plan: Entry, guest: Any, asked: Entry) -> None:
    """The listener's part in an exchange; the memory stays until the peer hangs up."""
    held = []  # type: List[End]

    def ready() -> None:
        address = guest.getsockname()[0]
        place = place_of(address, plan.get("sysroot", ""))
        if place is None:
            raise Untried("no RoCE v2 GID holds %s" % address)
        held.append(End(load_verbs(), place))
        held[0].connect(asked["rc"])

    problem = attempt(ready)
    said = {"untried": str(problem)} if problem else {"rc": held[0].told()}
    guest.sendall((json.dumps(said) + "\n").encode())
    if problem is None:
        if attempt(partial(held[0].receive, TALK_S)) is None:
            attempt(held[0].send)
        attempt(partial(guest.recv, 1))
    for each in held:
        each.close()


def within(one: Place, other: Place) -> List[Row]:
    """An exchange between two ports of this node, or a port with itself."""
    rows = [rows_of(one, other["device"], ""), rows_of(other, one["device"], "")]
    ends = []  # type: List[End]

    def opened() -> None:
        verbs = load_verbs()
        ends.extend([End(verbs, one), End(verbs, other)])

    problem = attempt(opened)
    if problem is not None:
        for each in rows:
            settle(each, problem)
    else:
        _between(ends, rows)
    for end in ends:
        end.close()
    return rows[0] + (rows[1] if one is not other else [])


def _between(ends: List[End], rows: List[List[Row]]) -> None:
    """Both directions; a direction that is open because of the other one is untried."""
    sides = ((0, 1), (1, 0))
    problems = [attempt(partial(ends[a].connect, ends[b].told())) for a, b in sides]
    for (a, b), problem in zip(sides, problems):
        if problem is None and problems[b] is not None:
            problem = Untried("the other end: %s" % problems[b])
        if problem is None:
            problem = attempt(partial(_message, ends[a], ends[b]))
        if settle(rows[a], problem):
            settle(rows[a][1:], attempt(ends[a].read))


def _message(one: End, other: End) -> None:
    one.send()
    one.wait(SENT, "send")
    other.receive()


# Trying


def exchanges(plan: Entry, end: float) -> List[Row]:
    """Every RC exchange, those of one rail after each other in a process of its own."""
    root = plan.get("sysroot", "")
    jobs = {}  # type: Dict[Any, List[Tuple[List[Row], Callable[[], List[Row]]]]]
    for pair in [p for p in plan["pairs"][:MAX_PAIRS] if p["rc"]]:
        place = place_of(pair["from"], root)
        if place is not None:
            job = jobs.setdefault(pair["from"], [])
            job.append(
                (
                    rows_of(place, "", pair["peer"]),
                    partial(across, plan, pair, place),
                )
            )
    here = inside(plan, root)
    for shift in range(len(here) // 2 + 1):
        for at, one in enumerate(here):
            other = here[(at + shift) % len(here)]
            if 2 * shift == len(here) and at >= shift:
                continue  # the pair was there from its other end
            rows = within_untried(one, other)
            job = jobs.setdefault(at, [])
            job.append((rows, partial(within, one, other)))
    return in_children(list(jobs.values()), end)


def within_untried(one: Place, other: Place) -> List[Row]:
    there = rows_of(other, one["device"], "") if one is not other else []
    return rows_of(one, other["device"], "") + there


def in_children(jobs: List[Any], end: float) -> List[Row]:
    """Runs each job in a child; what did not come of it in time stays untried."""
    children = [_child(job, end) for job in jobs]
    found = []  # type: List[Row]
    for job, (child, pipe) in zip(jobs, children):
        told = _until(pipe, end)
        os.close(pipe)
        _kill(child)
        for at, (rows, _) in enumerate(job):
            found.extend(told.get(at, rows))
    until = time.monotonic() + 0.5
    waiting = [child for child, _ in children]
    while waiting and left(until) > 0:
        waiting = [child for child in waiting if not _ended(child)]
        time.sleep(0.01)
    return found


def _child(job: Any, end: float) -> Tuple[int, int]:
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return child, reader
    try:
        signal.alarm(int(left(end)) + 2)  # also where the parent is gone
        os.close(reader)
        for at, (_, call) in enumerate(job):
            os.write(writer, (json.dumps([at, call()]) + "\n").encode())
    finally:
        os._exit(0)


def _until(pipe: int, end: float) -> Dict[int, List[Row]]:
    """Whole lines that come before the end."""
    heard = bytearray()
    while select.select([pipe], [], [], left(end))[0]:
        chunk = os.read(pipe, 65536)
        if not chunk:
            break
        heard.extend(chunk)
    lines = bytes(heard).split(b"\n")[:-1]
    return dict(map(json.loads, lines))


def _ended(child: int) -> bool:
    try:
        return os.waitpid(child, os.WNOHANG)[0] != 0
    except OSError:
        return True


def framed(document: Entry) -> str:
    line = json.dumps(document, sort_keys=True)
    return "%s\n###END %s###\n" % (line, hashlib.sha256(line.encode()).hexdigest())


def main(argv: Optional[List[str]] = None) -> int:
    plan = json.loads((sys.argv[1:] if argv is None else argv)[0])
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if plan["act"] == "listen":
        listener = Listener(plan)
        try:
            tell("###READY " + json.dumps(listener.open()))
            listener.serve()
        finally:
            listener.close()
        return 0
    end = time.monotonic() + float(plan["seconds"])
    cmds = handshakes(plan["pairs"][:MAX_PAIRS], plan, end)
    sys.stdout.write(framed({"cmds": cmds, "probes": exchanges(plan, end)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
