# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Clients that break the protocol: refused in words, the daemon goes on, nothing leaks."""
import mmap
import os
import random
import struct
import time

from harness import wire
from harness.lab import Daemon, Job, LabError, expect, wait_for
from harness.runner import test
from harness.wire import Client, Closed, error_of, memfd, message


class Watched:
    """A lab of one host whose daemon must be as it was, at the end."""

    def __init__(self, ctx, settings=None):
        self.lab = ctx.lab(1)
        try:
            self.daemon = Daemon(self.lab, self.lab.hosts[0], settings)
            # What a first session and a first communicator allocate for good is not a leak.
            Job(self.lab, [self.daemon], [2], "loop", "--iterations=3").finish(20)
            self.fds = wait_for("a quiet daemon", self._settled)
        except BaseException:
            self.lab.close()
            raise

    def _settled(self):
        fds = self.daemon.fds()
        time.sleep(0.3)
        return fds if self.daemon.fds() == fds else None

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                expect(self.daemon.alive(), f"the daemon died:\n{self.daemon.log()}")
                wait_for(lambda: f"descriptors back at {self.fds}, now {self.daemon.fds()}",
                         lambda: self.daemon.fds() <= self.fds, 1.0 * self.lab.slow)
                Job(self.lab, [self.daemon], [2], "loop", "--iterations=3").finish(20)
        finally:
            self.lab.close()

    def client(self, **options):
        return Client(self.daemon.socket, **options)


def refused(client, what, status=None):
    """The daemon answers with an error or hangs up; returns what it said."""
    closed, frames = client.closes()
    said = [error_of(f) for f in frames if f[0] == wire.ERROR]
    bye = [f[1].get(1, b"").decode() for f in frames if f[0] == wire.GOODBYE]
    expect(said or bye or closed, f"{what}: neither refused nor closed: {frames}")
    expect(said or bye, f"{what}: closed without a word")
    if status and said:
        expect(said[-1][0] == status, f"{what}: {said[-1]} instead of {status}")
    return said[-1] if said else ("GOODBYE", bye[-1])


@test
def mute(ctx):
    """Clients that never say who they are keep nobody out for long."""
    with Watched(ctx, {"tenant default": {"max_sessions": "8"}}) as w:
        mutes = [Client(w.daemon.socket, greet=False) for _ in range(200)]
        try:
            time.sleep(5.5)
            wait_for("room for a job beside 200 mute clients",
                     lambda: not any(Job(w.lab, [w.daemon], [1], "loop", "--iterations=1").wait(20)),
                     3)
        finally:
            for client in mutes:
                client.close()


@test
def bad_hello(ctx):
    with Watched(ctx) as w:
        with w.client(greet=False) as c:
            c.raw(b"GET / HTTP/1.0\r\n\r\n" + bytes(64))
            expect(c_closes(c), "garbage for a hello: not closed")
        with w.client(greet=False) as c:
            c.raw(wire.hello(low=900, high=999))
            theirs = c.exactly(wire.HELLO_SIZE)
            expect(theirs[:8] == b"ROCECOMM", "no hello for another version")
            low, high = struct.unpack_from("<HH", theirs, 8)
            expect(high >= low >= 1, f"versions {low} to {high}")
            # Both sides know both ranges now; there is no version to say more in.
            expect(c_closes(c), "no common version: not closed")
        with w.client(greet=False) as c:
            c.raw(wire.hello()[:13])


def c_closes(client, seconds=2.0):
    """For streams without frames."""
    client.sock.settimeout(seconds)
    try:
        while client.sock.recv(4096):
            pass
        return True
    except (ConnectionResetError, BrokenPipeError):
        return True
    except OSError:
        return False


@test
def bad_frames(ctx):
    with Watched(ctx) as w:
        with w.client() as c:
            c.raw(wire.HEADER.pack(wire.LIMIT_BODY + 1, wire.CLIENT_HELLO, 0, 0, 1))
            refused(c, "oversized message")
        with w.client() as c:
            c.raw(wire.HEADER.pack(0xffffffff, wire.CLIENT_HELLO, 0, 0, 1))
            refused(c, "message of 4 GiB")
        with w.client() as c:
            c.raw(wire.HEADER.pack(0, wire.CLIENT_HELLO, 0, 7, 1))
            refused(c, "reserved byte")
        with w.client() as c:
            c.raw(wire.HEADER.pack(0, wire.CLIENT_HELLO, 200, 0, 1))
            refused(c, "200 descriptors")
        with w.client() as c:
            c.raw(wire.HEADER.pack(0, 0, 0, 0, 1))
            refused(c, "type 0")
        with w.client() as c:
            c.send(wire.CLIENT_HELLO, b"\xff" * 40)
            refused(c, "a body that is no message")
        with w.client() as c:
            c.join()
            c.send(9999, b"abc")
            refused(c, "unknown type")
        with w.client() as c:
            c.join()
            c.send(wire.WELCOME, b"")
            refused(c, "a reply as a request")


@test
def truncated_at_every_byte(ctx):
    """Hangs up after every number of bytes of a registration."""
    body = message(f1=65536)
    frame = wire.HEADER.pack(len(body), wire.BUFFER_REGISTER, 1, 0, 2) + body
    greeting = wire.hello()
    with Watched(ctx) as w:
        for cut in range(len(greeting)):
            with w.client(greet=False) as c:
                c.raw(greeting[:cut] or b"R")
        for cut in range(1, len(frame) + 1):
            with w.client() as c:
                c.join()
                fd = memfd(65536)
                c.raw(frame[:cut], [fd])
                os.close(fd)
        return f"{len(greeting) + len(frame)} places"


@test
def out_of_order(ctx):
    with Watched(ctx) as w:
        with w.client() as c:
            c.send(wire.BUFFER_REGISTER, message(f1=4096))
            refused(c, "register before the hello")
        with w.client() as c:
            c.send(wire.STATUS_GET)
            refused(c, "status before the hello")
        with w.client() as c:
            c.join()
            c.send(wire.CLIENT_HELLO, message(f1=b"again"))
            refused(c, "second hello")
        with w.client() as c:
            c.join(admin=True)
            fd = memfd(4096)
            c.send(wire.BUFFER_REGISTER, message(f1=4096), [fd])
            os.close(fd)
            refused(c, "an administrator that registers memory")
        with w.client() as c:
            c.join()
            status, _ = error_of(c.call(wire.COMM_DESTROY, message(f1=12345)))
            expect(status == "NOT_FOUND", f"unknown communicator: {status}")


@test
def descriptors(ctx):
    with Watched(ctx) as w:
        with w.client() as c:
            c.join()
            status, text = error_of(c.call(wire.BUFFER_REGISTER, message(f1=4096)))
            expect(status == "FD_MISSING", f"no descriptor: {status}: {text}")
            fd = memfd(4096)
            reply = c.call(wire.BUFFER_REGISTER, message(f1=4096), [fd])
            expect(reply[0] == wire.BUFFER_READY, f"connection is not usable any more: {reply}")
            os.close(fd)
        with w.client() as c:
            c.join()
            c.send(wire.BUFFER_REGISTER, message(f1=4096), nfds=1)
            status, text = refused(c, "promised descriptor", "FD_MISSING")
        with w.client() as c:
            c.join()
            fds = [memfd(4096) for _ in range(7)]
            kind, _ = c.call(wire.BUFFER_REGISTER, message(f1=4096), fds)
            expect(kind in (wire.BUFFER_READY, wire.ERROR), f"surplus descriptors: {kind}")
            for fd in fds:
                os.close(fd)
        with w.client() as c:
            c.join()
            fds = [memfd(4096) for _ in range(20)]
            try:
                c.send(wire.STATUS_GET, b"", fds, nfds=0)
                c.closes(0.5)
            except Closed:
                pass
            for fd in fds:
                os.close(fd)
        return text


@test
def bad_memory(ctx):
    with Watched(ctx) as w:
        with w.client() as c:
            c.join()

            def register(what, fd, size, want="BAD_MEMORY"):
                status, text = error_of(c.call(wire.BUFFER_REGISTER, message(f1=size), [fd]))
                os.close(fd)
                expect(status == want, f"{what}: {status}: {text}")
                return text

            register("unsealed", memfd(65536, seals=0), 65536)
            register("too small", memfd(4096), 65536)
            register("empty", memfd(0), 4096)
            register("a pipe", os.pipe()[0], 4096)
            register("a file", os.open("/etc/passwd", os.O_RDONLY), 4096)
            register("/dev/zero", os.open("/dev/zero", os.O_RDWR), 4096)
            register("size 0", memfd(4096), 0, "INVALID")
            register("size 2^63", memfd(4096), 1 << 63, "QUOTA")
            text = register("only sealed against growing", memfd(65536, seals=4), 65536)
            fd = memfd(65536)
            kind, _ = c.call(wire.BUFFER_REGISTER, message(f1=65536), [fd])
            expect(kind == wire.BUFFER_READY, "good memory is refused")
            try:
                os.ftruncate(fd, 0)
                raise LabError("a sealed memfd was shrunk")
            except PermissionError:
                pass
            os.close(fd)
        return text


def ring_client(client):
    """Joins, returns the mapped session page and the bell."""
    client.join()
    expect(len(client.fds) == 3, f"{len(client.fds)} descriptors with the welcome")
    page = mmap.mmap(client.fds[0], os.fstat(client.fds[0]).st_size)
    return page, client.fds[1]


def push(page, bell, tail, descriptor):
    page[4096 + (tail % 1024) * 128:4096 + (tail % 1024) * 128 + 128] = descriptor
    struct.pack_into("<I", page, 3 * 64, tail + 1)
    os.write(bell, struct.pack("<Q", 1))


DESC = struct.Struct("<IIIBBBBIIIIQQQQQQ48x")


def desc(ticket=1, generation=1, comm=1, kind=0, dtype=10, op=0, flags=0, root=0, send=1, recv=1,
         args=0, count=4, send_off=0, recv_off=0, args_off=0, seq=0, scalar=0):
    return DESC.pack(ticket, generation, comm, kind, dtype, op, flags, root, send, recv, args,
                     count, send_off, recv_off, args_off, seq, scalar)


def solo(client):
    """A communicator of one rank and a registered buffer: (comm, buffer)."""
    kind, fields = client.call(wire.GET_UNIQUE_ID)
    expect(kind == wire.UNIQUE_ID, f"no id: {kind}")
    kind, fields = client.call(wire.COMM_INIT, message(f1=fields[1], f2=0, f3=1))
    expect(kind == wire.COMM_READY, f"no communicator: {kind} {fields}")
    comm = fields[1]
    fd = memfd(65536)
    kind, fields = client.call(wire.BUFFER_REGISTER, message(f1=65536), [fd])
    os.close(fd)
    expect(kind == wire.BUFFER_READY, f"no buffer: {kind}")
    return comm, fields[1]


@test
def lying_ring_indexes(ctx):
    with Watched(ctx) as w:
        for tail in (1025, 0x7fffffff, 0xffffffff, 5000):
            with w.client() as c:
                page, bell = ring_client(c)
                struct.pack_into("<I", page, 3 * 64, tail)
                os.write(bell, struct.pack("<Q", 1))
                refused(c, f"tail {tail}")
                page.close()
        with w.client() as c:
            page, bell = ring_client(c)
            page[64:320] = b"\xff" * 256  # also what only the daemon writes
            os.write(bell, struct.pack("<Q", 1))
            c.closes(0.3)
            page.close()


@test
def lying_descriptors(ctx):
    """Each must end with an error of its own or of the session, never with a crash."""
    lies = [dict(comm=77), dict(comm=0), dict(kind=200), dict(dtype=99), dict(dtype=12),
            dict(op=50), dict(kind=2, root=9), dict(send=500), dict(recv=0), dict(count=1 << 62),
            dict(count=(1 << 64) - 1), dict(send_off=65536 - 8), dict(send_off=(1 << 64) - 4),
            dict(recv_off=1 << 40), dict(seq=9), dict(ticket=1 << 31), dict(ticket=4096),
            dict(kind=8, args=1, args_off=65530), dict(kind=8, args=99),
            dict(kind=12, args=1, args_off=(1 << 64) - 8), dict(kind=14, root=5),
            dict(recv_off=4), dict(flags=255)]
    with Watched(ctx) as w:
        for lie in lies:
            with w.client() as c:
                page, bell = ring_client(c)
                comm, buffer = solo(c)
                good = dict(comm=comm, send=buffer, recv=buffer)
                push(page, bell, 0, desc(**{**good, **lie}))
                time.sleep(0.02)
                expect(w.daemon.alive(), f"{lie} killed the daemon:\n{w.daemon.log()}")
                page.close()
        chance = random.Random(1)
        for _ in range(30 if ctx.short else 200):
            with w.client() as c:
                page, bell = ring_client(c)
                comm, buffer = solo(c)
                for tail in range(8):
                    d = bytearray(desc(comm=comm, send=buffer, recv=buffer, seq=tail,
                                       ticket=tail, kind=chance.randrange(16)))
                    for _ in range(chance.randrange(4)):
                        d[chance.randrange(80)] = chance.randrange(256)
                    push(page, bell, tail, bytes(d))
                page.close()
        expect(w.daemon.alive(), f"the daemon died:\n{w.daemon.log()}")


@test
def buffer_of_another_session(ctx):
    """Handles are a session's own: the same number elsewhere is nobody's."""
    with Watched(ctx) as w, w.client() as a, w.client() as b:
        a.join()
        b.join()
        fd = memfd(4096)
        for _ in range(3):
            kind, fields = a.call(wire.BUFFER_REGISTER, message(f1=4096), [fd])
        os.close(fd)
        status, _ = error_of(b.call(16, message(f1=fields[1])))
        expect(status == "NOT_FOUND", f"deregistering another's buffer: {status}")
        expect(kind == wire.BUFFER_READY, "not registered")


@test
def client_that_stops_reading(ctx):
    """Asks for ever and never reads an answer: its memory in the daemon stays bounded."""
    with Watched(ctx) as w:
        with w.client() as c:
            c.join()
            before = w.daemon.rss_kib()
            c.sock.settimeout(0.5)
            sent = 0
            try:
                for sent in range(200000):
                    c.send(wire.STATUS_GET)
            except (OSError, Closed):
                pass
            grown = w.daemon.rss_kib() - before
            allowed = 16384 if not ctx.sanitized else 1 << 17
            expect(grown < allowed, f"grew by {grown} KiB after {sent} unread answers")
            Job(w.lab, [w.daemon], [2], "loop", "--iterations=3").finish(20)
        return f"{sent} requests, grew by {grown} KiB"


@test
def sigkill_200_times(ctx):
    """Clients killed at random moments: memory and descriptors come back to the base line."""
    rounds = 30 if ctx.short else 200
    chance = random.Random(7)
    with Watched(ctx) as w:
        def base():
            return wait_for("quiet", w._settled), w.daemon.rss_kib()

        def strike(seed):
            job = Job(w.lab, [w.daemon], [1], "churn", f"--seed={seed}")
            rank = job.ranks[0]
            if chance.random() < 0.7:
                wait_for("ready", lambda: rank.lines("ready") or
                         rank.process.poll() is not None, 10)
            time.sleep(chance.random() * 0.05)
            expect(rank.process.poll() is None or rank.process.returncode == 0,
                   f"the client failed by itself: {rank.errors()}")
            job.kill()

        for seed in range(10):  # warm up: pools grow to their working size
            strike(seed)
        fds, rss = base()
        for seed in range(rounds):
            strike(100 + seed)
        wait_for(lambda: f"fds {w.daemon.fds()}, were {fds}", lambda: w.daemon.fds() <= fds,
                 1.0 * w.lab.slow)
        after = w.daemon.rss_kib()
        allowed = 2048 if not ctx.sanitized else 1 << 20
        expect(after <= rss + allowed, f"resident {rss} KiB before, {after} KiB after")
        left = w.daemon.status()
        expect("collcheck" not in str(left), f"left behind: {left}")
        return f"{rounds} kills; fds {fds} -> {w.daemon.fds()}, resident {rss} -> {after} KiB"


@test
def quotas_name_used_limit_and_key(ctx):
    with Watched(ctx, {"tenant default": {"max_bytes": "256M", "max_buffers": 64,
                                          "max_comms": 8}}) as w:
        job = Job(w.lab, [w.daemon], [1], "quota", "--count=33554432", "--iterations=100")
        job.wait(20)
        line = job.ranks[0].lines("error")[0]
        expect("QUOTA" in line.upper() and "max_bytes" in line, f"bytes: {line}")
        job = Job(w.lab, [w.daemon], [1], "quota", "--count=4096", "--iterations=1000")
        job.wait(20)
        buffers = job.ranks[0].lines("error")[0]
        expect("QUOTA" in buffers.upper() and "max_buffers" in buffers, f"buffers: {buffers}")
        return line.split(" ", 2)[2]


@test
def bigger_message_of_a_newer_client(ctx):
    """Unknown fields are ignored."""
    with Watched(ctx) as w, w.client() as c:
        kind, _ = c.call(wire.CLIENT_HELLO, message(f1=b"newer", f2=1, f99=b"x" * 100, f100=5))
        expect(kind == wire.WELCOME, f"unknown fields refused: {kind}")
        kind, _ = c.call(wire.STATUS_GET, message(f77=1))
        expect(kind == wire.STATUS_REPLY, f"status: {kind}")
