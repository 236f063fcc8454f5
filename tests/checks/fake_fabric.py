"""What the prober needs of pyverbs, over files of a folder that two processes share.

It is as strict as a device where mistakes of the prober would show: transitions come
in their order, a packet number, GID, path MTU or key that does not fit carries nothing.
`FABRIC` names the folder, `FAULTS` holds what goes wrong, as JSON:
`{"open": {DEVICE: ERRNO}, "rtr": {DGID: ERRNO}, "status": {DEVICE: STATUS},
"hang": [DGID], "corrupt": [DEVICE], "mute": [DEVICE]}`.
"""

import itertools
import json
import os
import time
from pathlib import Path

FABRIC = Path(os.environ["FABRIC"])
FAULTS = json.loads(os.environ.get("FAULTS", "{}"))
PORTS = json.loads((FABRIC / "ports.json").read_text())
"""By device: path MTU as its enum, GIDs by index."""
COUNT = itertools.count(os.getpid() << 8)
RETRIES, ACCESS = 12, 10


class PyverbsRDMAError(Exception):
    def __init__(self, text, code):
        super().__init__(f"{text}. Errno: {code}, {os.strerror(code)}")
        self.error_code = code


def fault(kind, key):
    return FAULTS.get(kind, {}).get(key, 0)


class Enums:
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ = 1, 4
    IBV_QPT_RC, IBV_SEND_SIGNALED = 2, 2
    IBV_WR_SEND, IBV_WR_RDMA_READ = 2, 4


class Held:
    alive = 0

    def __init__(self):
        Held.alive += 1

    def close(self):
        Held.alive -= 1


class PortAttr:
    def __init__(self, mtu):
        self.active_mtu = mtu


class Context(Held):
    def __init__(self, name):
        if fault("open", name):
            raise PyverbsRDMAError("Failed to open device", fault("open", name))
        super().__init__()
        self.name = name

    def query_port(self, number):
        assert number == 1
        return PortAttr(PORTS[self.name]["mtu"])


class PD(Held):
    def __init__(self, context):
        super().__init__()
        self.context = context


class MR(Held):
    def __init__(self, pd, length, access):
        super().__init__()
        self.rkey = self.lkey = next(COUNT)
        self.buf = self.rkey << 20
        self.file = FABRIC / f"mr-{self.rkey}"
        self.file.write_bytes(bytes(length))
        self.remote = access & Enums.IBV_ACCESS_REMOTE_READ
        (FABRIC / f"mr-{self.rkey}.readable").write_text(str(self.remote))
        REGIONS[self.lkey] = self

    def write(self, data, length, offset):
        memory = bytearray(self.file.read_bytes())
        memory[offset : offset + length] = data[:length]
        self.file.write_bytes(memory)

    def read(self, length, offset):
        return self.file.read_bytes()[offset : offset + length]


REGIONS = {}


class WC:
    def __init__(self, wr_id, status):
        self.wr_id, self.status = wr_id, status


class CQ(Held):
    def __init__(self, context, entries):
        super().__init__()
        self.ready, self.pairs = [], []

    def poll(self, most):
        for pair in self.pairs:
            pair.take()
        found, self.ready = self.ready[:most], self.ready[most:]
        return len(found), found


class QPCap:
    def __init__(self, max_send_wr, max_recv_wr):
        pass


class QPInitAttr:
    def __init__(self, qp_type, scq, rcq, cap):
        assert qp_type == Enums.IBV_QPT_RC
        assert scq is rcq
        self.cq = scq


class QPAttr:
    """Any attribute may be set; the pair looks at those of its transition."""


class GID:
    def __init__(self, text):
        assert len(text) == 39, "pyverbs takes a GID in full only"
        self.gid = text


class GlobalRoute:
    def __init__(self, dgid, sgid_index, hop_limit):
        assert hop_limit > 1
        self.dgid, self.sgid_index = dgid.gid, sgid_index


class AHAttr:
    def __init__(self, gr, is_global, port_num):
        assert (is_global, port_num) == (1, 1)
        self.gr = gr


class SGE:
    def __init__(self, addr, length, lkey):
        self.region, self.length = REGIONS[lkey], length
        self.offset = addr - self.region.buf


class RecvWR:
    def __init__(self, wr_id, num_sge, sg):
        self.wr_id, (self.place,) = wr_id, sg


class SendWR:
    def __init__(self, wr_id, num_sge, sg, opcode, send_flags):
        assert send_flags == Enums.IBV_SEND_SIGNALED
        self.wr_id, (self.place,), self.opcode = wr_id, sg, opcode

    def set_wr_rdma(self, rkey, addr):
        self.rkey, self.addr = rkey, addr


class QP(Held):
    def __init__(self, pd, init):
        super().__init__()
        self.qp_num = next(COUNT)
        self.device = pd.context.name
        self.cq = init.cq
        self.cq.pairs.append(self)
        self.state, self.posted, self.heard = "RESET", [], 0

    @property
    def _file(self):
        return FABRIC / f"qp-{self.qp_num}"

    def close(self):
        self._file.unlink(missing_ok=True)
        super().close()

    def _step(self, before, after):
        if self.state != before:
            raise PyverbsRDMAError(f"Failed to modify QP state to {after}", 22)
        self.state = after

    def to_init(self, attr):
        self._step("RESET", "INIT")
        self.readable = attr.qp_access_flags & Enums.IBV_ACCESS_REMOTE_READ

    def to_rtr(self, attr):
        route = attr.ah_attr.gr
        if route.dgid in FAULTS.get("hang", ()):
            time.sleep(600)
        if fault("rtr", route.dgid):
            code = fault("rtr", route.dgid)
            raise PyverbsRDMAError("Failed to modify QP state to RTR", code)
        own = PORTS[self.device]["gids"].get(str(route.sgid_index))
        if own is None:
            raise PyverbsRDMAError("Failed to modify QP state to RTR", 61)
        if attr.path_mtu > PORTS[self.device]["mtu"]:
            raise PyverbsRDMAError("Failed to modify QP state to RTR", 22)
        self._step("INIT", "RTR")
        self.peer, self.dgid, self.psn = attr.dest_qp_num, route.dgid, attr.rq_psn
        self.mtu = attr.path_mtu
        told = {"gid": own, "from": self.dgid, "psn": self.psn, "mtu": self.mtu}
        self._file.write_text(json.dumps({**told, "readable": self.readable}))

    def to_rts(self, attr):
        self._step("RTR", "RTS")
        assert 0 < attr.timeout < 20
        assert attr.retry_cnt
        self.own_psn = attr.sq_psn
        self.own_gid = PORTS[self.device]["gids"][str(attr.ah_attr.gr.sgid_index)]

    def post_recv(self, work):
        assert self.state != "RESET"
        self.posted.append(work)

    def post_send(self, work):
        assert self.state == "RTS"
        carry = self._read if work.opcode == Enums.IBV_WR_RDMA_READ else self._send
        status = fault("status", self.device) or self._lost() or carry(work)
        self.cq.ready.append(WC(work.wr_id, status))

    def _lost(self):
        """Nobody at the other end whose number, GID and MTU fit."""
        try:
            there = json.loads((FABRIC / f"qp-{self.peer}").read_text())
        except (FileNotFoundError, ValueError):
            return RETRIES
        mine = {
            "gid": self.dgid,
            "from": self.own_gid,
            "psn": self.own_psn,
            "mtu": self.mtu,
        }
        fits = all(there[key] == value for key, value in mine.items())
        return 0 if fits else RETRIES

    def _send(self, work):
        if self.device in FAULTS.get("mute", ()):
            return 0
        place = work.place
        data = place.region.read(place.length, place.offset)
        self.heard += 1
        fresh = FABRIC / f"new-{self.qp_num}"
        fresh.write_bytes(data)
        fresh.rename(FABRIC / f"msg-{self.peer}-{self.heard}")
        return 0

    def _read(self, work):
        there = json.loads((FABRIC / f"qp-{self.peer}").read_text())
        region = FABRIC / f"mr-{work.rkey}"
        allowed = (FABRIC / f"{region.name}.readable").read_text() != "0"
        if not (allowed and there["readable"]):
            return ACCESS
        offset = work.addr - (work.rkey << 20)
        place = work.place
        data = region.read_bytes()[offset : offset + place.length]
        if self.device in FAULTS.get("corrupt", ()):
            data = bytes(len(data))
        place.region.write(data, place.length, place.offset)
        return 0

    def take(self):
        for message in sorted(FABRIC.glob(f"msg-{self.qp_num}-*")):
            if not self.posted:
                return
            work = self.posted.pop(0)
            data = message.read_bytes()
            message.unlink()
            assert len(data) == work.place.length
            work.place.region.write(data, len(data), work.place.offset)
            self.cq.ready.append(WC(work.wr_id, 0))
