#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Writes the first files of corpus/fuzz_frame, fuzz_msg, fuzz_ring and fuzz_wire. Run it in tests/fuzz."""
import pathlib
import struct


def write(target, name, data):
    folder = pathlib.Path("corpus") / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def frame(kind, body=b"", nfds=0, serial=1, length=None, zero=0):
    size = len(body) if length is None else length
    return struct.pack("<IHBBQ", size, kind, nfds, zero, serial) + body


def field(number, value):
    """One protobuf field: an int (varint) or bytes (length-delimited), below 128."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    return bytes([number << 3 | 2, len(value)]) + value


def ring(action, arg=0, offset=0, value=0):
    return struct.pack("<BBHI", action, arg, offset, value & 0xFFFFFFFF)


FRAMES = {
    "empty_body": frame(4),
    "many": frame(2, b"hello") + frame(4) + frame(14, b"x" * 40, nfds=1, serial=2),
    "unfinished": frame(2, b"hell", length=5),
    "too_big": frame(2, length=1 << 21),
    "at_limit": frame(2, b"y" * 512),
    "over_limit": frame(2, b"y" * 513),
    "type_0": frame(0, b"x"),
    "fds_9": frame(2, nfds=9),
    "reserved": frame(2, b"abc", zero=1),
    "good_then_bad": frame(2, b"abc") + frame(0),
}
for name, data in FRAMES.items():
    write("fuzz_frame", name, b"\x03\x06" + data)
    if name == "many":
        write("fuzz_frame", name + "_bytewise", b"\x01\x00" + data)

MESSAGES = {
    "error": (0, field(1, 8) + field(2, b"too many")),
    "client_hello": (1, field(1, b"train") + field(2, 77) + field(3, b"0.1.0") + field(4, 1)),
    "comm_init": (5, field(1, b"\x01" * 16) + field(2, 1) + field(3, 4) + field(4, field(2, 100))),
    "comm_ready_packed": (8, field(1, 1) + field(5, b"\0\0\1\1") + field(4, field(1, b"a"))),
    "unknown_field": (0, field(15, b"later")),
    "cut_off": (0, field(2, b"too many")[:-3]),
    "group_tag": (0, b"\x0b\x0c"),
    "long_varint": (0, b"\x08" + b"\xff" * 9 + b"\x01"),
    "field_0_long": (17, b"\x81\x00" + b"\x00" * 8),
    "length_overflow": (0, b"\x12\xff\xff\xff\xff\x0f"),
}
for name, (index, data) in MESSAGES.items():
    write("fuzz_msg", name, bytes([index]) + data)
PEER_HELLO = field(1, field(1, b"\x02" * 16) + field(2, b"h")) + field(3, field(1, b"k"))
write("fuzz_msg", "peer_nested", bytes([26]) + PEER_HELLO)

POP, TAIL, AHEAD, WRITE, SLEEP = range(5)
RINGS = {
    "three": ring(WRITE, 4, 8, 0xABCD) + ring(AHEAD, value=3) + ring(POP, 64) + ring(SLEEP),
    "full": ring(AHEAD, value=1024) + ring(POP, 64) * 17,
    "too_far": ring(AHEAD, value=1025) + ring(POP, 8) + ring(AHEAD, value=1) + ring(POP, 8),
    "backwards": ring(AHEAD, value=5) + ring(POP, 5) + ring(TAIL, value=4) + ring(POP, 8),
    "wild_tail": ring(TAIL, value=0x80000000) + ring(POP, 1) + ring(TAIL, value=-1) + ring(POP, 1),
    "false_header": ring(WRITE, 0, 20, 0xFFFFFFFF) + ring(WRITE, 0, 24, 1 << 30)
    + ring(WRITE, 0, 128, 99) + ring(AHEAD, value=9) + ring(POP, 64),
    "sleep": ring(SLEEP) + ring(AHEAD, value=1) + ring(SLEEP) + ring(POP, 0) + ring(POP, 1),
}
for name, data in RINGS.items():
    write("fuzz_ring", name, data)


def wire(stream, body, length=None, offset=0, fragment=None, tag=1, magic=0x5257, kind=1):
    """A chunk of one stream: a fragment with its header."""
    length = len(body) if length is None else length
    fragment = len(body) if fragment is None else fragment
    header = struct.pack("<HBBIQQQIIIHBBQIBBH", magic, kind, 0, fragment, length, offset, 7, 1, 0,
                         tag, 0, 0, 0, 0, 0, 0, 0, 0)
    data = header + body
    return struct.pack("<H", len(data) | stream << 15) + data


BODY = bytes(range(256))
WIRES = {
    "small": wire(0, b"") + wire(1, b"abc", tag=2) + wire(0, b"q" * 256, tag=3),
    "large": wire(0, BODY, 700, 256) + wire(1, BODY, 700) + wire(0, BODY[:188], 700, 512),
    "callback": wire(1, BODY, 500, tag=2) + wire(0, BODY[:244], 500, 256, tag=2),
    "discard": wire(1, BODY, 500, tag=3) + wire(0, BODY[:244], 500, 256, tag=3),
    "twice": wire(0, BODY, 768) + wire(1, BODY, 768) + wire(0, BODY, 768, 512),
    "contradiction": wire(0, BODY, 768) + wire(0, BODY, 769, 256),
    "magic": wire(0, b"abc", magic=0x5258),
    "type": wire(0, b"abc", kind=8),
    "too_long": wire(0, BODY, 1 << 40, fragment=257),
    "outside": wire(0, BODY, 300, 64),
    "offset_wraps": wire(0, BODY, 300, (1 << 64) - 64),
    "unaligned": wire(0, BODY, 1000, 1),
    "huge": wire(0, BODY, (1 << 64) - 1) + wire(1, BODY, (1 << 64) - 1, 256, tag=2),
    "cut_off": wire(0, BODY, 700)[:-9],
}
for name, data in WIRES.items():
    write("fuzz_wire", name, b"\0" + data)
write("fuzz_wire", "freed", b"\2" + WIRES["large"])
