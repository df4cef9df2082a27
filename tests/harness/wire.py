# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""The client protocol by hand, for clients that do what the library never would."""
import array
import fcntl
import os
import select
import socket
import struct

HELLO_SIZE = 32
HEADER = struct.Struct("<IHBBQ")
LIMIT_BODY = 1 << 20
LIMIT_FDS = 8
RING_OFF, RING_SLOTS, SLOT_SIZE = 4096, 1024, 128

ERROR, CLIENT_HELLO, WELCOME, GET_UNIQUE_ID, UNIQUE_ID = 1, 2, 3, 4, 5
COMM_INIT, COMM_READY, COMM_DESTROY, DONE = 6, 7, 9, 13
BUFFER_REGISTER, BUFFER_READY, STATUS_GET, STATUS_REPLY, GOODBYE = 14, 15, 17, 18, 21
STATUS = {2: "INVALID", 8: "QUOTA", 12: "VERSION", 13: "PROTOCOL", 14: "FD_MISSING",
          15: "BAD_MEMORY", 20: "NOT_FOUND", 11: "PERMISSION"}


def varint(value):
    out = bytearray()
    while value > 0x7f:
        out.append(value & 0x7f | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def message(**fields):
    """message(f1=3, f2=b"x"): protobuf fields by number, integers and bytes."""
    out = b""
    for name, value in fields.items():
        number = int(name[1:])
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            out += varint(number << 3 | 2) + varint(len(value)) + value
    return out


def parse(body):
    """Field number -> value of the last occurrence."""
    fields, at = {}, 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = body[at]
            at += 1
            value |= (byte & 0x7f) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(body):
        key = number()
        if key & 7 == 0:
            fields[key >> 3] = number()
        else:
            size = number()
            fields[key >> 3] = body[at:at + size]
            at += size
    return fields


def hello(magic=b"ROCECOMM", low=1, high=1):
    return magic + struct.pack("<HHI", low, high, 0) + bytes(16)


class Closed(Exception):
    """The daemon hung up."""


class Client:
    """A raw connection."""

    def __init__(self, path, greet=True, timeout=5.0):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(timeout)
        self.sock.connect(path)
        self.serial = 0
        self.buffer = b""
        self.fds = []
        if greet:
            self.raw(hello())
            self.exactly(HELLO_SIZE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.sock.close()
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def raw(self, data, fds=()):
        try:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
            self.sock.sendmsg([data], ancillary)
        except (BrokenPipeError, ConnectionResetError) as e:
            raise Closed() from e

    def exactly(self, size):
        while len(self.buffer) < size:
            try:
                data, ancillary, _, _ = self.sock.recvmsg(65536, socket.CMSG_SPACE(16 * 4))
            except ConnectionResetError as e:
                raise Closed() from e
            for level, kind, payload in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    got = array.array("i")
                    got.frombytes(payload[:len(payload) // 4 * 4])
                    self.fds += list(got)
            if not data:
                raise Closed()
            self.buffer += data
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    def send(self, kind, body=b"", fds=(), nfds=None, serial=None):
        self.serial += 1
        header = HEADER.pack(len(body), kind, len(fds) if nfds is None else nfds, 0,
                             self.serial if serial is None else serial)
        self.raw(header + body, fds)

    def receive(self):
        """Next frame: (type, fields)."""
        length, kind, _, _, _ = HEADER.unpack(self.exactly(HEADER.size))
        return kind, parse(self.exactly(length))

    def call(self, kind, body=b"", fds=(), nfds=None):
        self.send(kind, body, fds, nfds)
        return self.receive()

    def join(self, admin=False):
        """ClientHello; returns Welcome's fields. fds: page, bell, completion."""
        kind, fields = self.call(CLIENT_HELLO, message(f1=b"hostile", f2=os.getpid(), f3=b"0",
                                                       f4=int(admin)))
        if kind != WELCOME:
            raise AssertionError(f"no welcome: {kind} {fields}")
        return fields

    def closes(self, seconds=2.0):
        """Does the daemon hang up within that time? Frames before that are returned as a list."""
        frames = []
        self.sock.settimeout(seconds)
        try:
            while True:
                frames.append(self.receive())
        except Closed:
            return True, frames
        except socket.timeout:
            return False, frames

    def quiet(self, seconds):
        return not select.select([self.sock], [], [], seconds)[0]


def error_of(reply):
    """(STATUS, text) of an Error frame."""
    kind, fields = reply
    if kind != ERROR:
        raise AssertionError(f"message {kind} instead of an error: {fields}")
    return STATUS.get(fields.get(1), str(fields.get(1))), fields.get(2, b"").decode()


def memfd(size, seals=None):
    """A memfd as the library makes one; seals: None for the right ones."""
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    f_add_seals, seal_seal, seal_shrink, seal_grow = 1033, 1, 2, 4
    fcntl.fcntl(fd, f_add_seals, seal_seal | seal_shrink | seal_grow if seals is None else seals)
    return fd
