"""A master that only knows segments, over real gRPC."""

from __future__ import annotations

import threading
import time
from concurrent import futures
from types import SimpleNamespace

import grpc
import pytest

from refimpl.proto import pool_pb2, pool_pb2_grpc


class MountBook(pool_pb2_grpc.MasterServicer):
    """Writes down who mounts and unmounts; `codes` are answered first, then OK."""

    def __init__(self):
        self.mounts = []
        self.unmounts = []
        self.codes = []
        self.delay_s = 0.0
        self.mounted = threading.Semaphore(0)

    def MountSegment(self, request, context):
        self.mounts.append(request)
        time.sleep(self.delay_s)
        code = self.codes.pop(0) if self.codes else 0
        if code == 0:
            self.mounted.release()
        return pool_pb2.Status(code=code)

    def UnmountSegment(self, request, context):
        self.unmounts.append(request)
        return pool_pb2.Status(code=0)


@pytest.fixture
def master():
    book = MountBook()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    pool_pb2_grpc.add_MasterServicer_to_server(book, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield SimpleNamespace(book=book, address=f"127.0.0.1:{port}", server=server)
    server.stop(None).wait()
