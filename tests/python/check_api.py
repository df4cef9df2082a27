# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""The package for NumPy and DLPack, one rank of it."""
import os
import select
import signal
import sys
import threading
import time

import numpy

import rocecomm
from ranks import check, main, raises
from rocecomm import Op

RANK = int(os.environ["RANK"])
SIZE = int(os.environ["WORLD_SIZE"])
STATE = {}
TYPES = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]


def begin():
    STATE["client"] = rocecomm.connect(name="check_api")
    STATE["comm"] = STATE["client"].communicator_from_env(name="check", join_timeout=60)


def end():
    STATE["comm"].destroy()
    STATE["client"].close()


def of_rank(rank, count, dtype):
    return ((numpy.arange(count) * 7 + rank * 3) % 5).astype(dtype)


def inputs(count, dtype):
    return [of_rank(rank, count, dtype) for rank in range(SIZE)]


def equal(got, want, what):
    check(numpy.array_equal(got, want), f"{what}: {got} is not {want}")


def test_reductions():
    comm = STATE["comm"]
    for dtype in TYPES:
        every = inputs(33, dtype)
        cases = [(Op.SUM, sum(every[1:], every[0].copy())), (Op.MAX, numpy.maximum.reduce(every))]
        cases += [(Op.MIN, numpy.minimum.reduce(every)), (Op.PROD, numpy.multiply.reduce(every, dtype=dtype))]
        if dtype[0] != "f":
            cases += [(Op.BAND, numpy.bitwise_and.reduce(every)), (Op.BXOR, numpy.bitwise_xor.reduce(every))]
        for op, want in cases:
            got = numpy.zeros(33, dtype)
            comm.allreduce(every[RANK], got, op)
            equal(got, want, f"allreduce {dtype} {op.name}")
            mine = every[RANK].copy()
            comm.reduce(mine, root=SIZE - 1, op=op)
            equal(mine, want if RANK == SIZE - 1 else every[RANK], f"reduce {dtype} {op.name}")
    both = numpy.array([1 + 2j, RANK], "c8")
    comm.allreduce(both)
    equal(both, numpy.array([SIZE * (1 + 2j), sum(range(SIZE))], "c8"), "complex")
    truth = numpy.array([RANK == 0, False, True])
    comm.allreduce(truth, op=Op.BAND)
    equal(truth, numpy.array([False, False, True]), "bool")
    raises(ValueError, lambda: comm.allreduce(both, op=Op.MAX), "complex")
    scaled = numpy.full(4, 2.0)
    comm.allreduce(scaled, op=comm.premul(0.5))
    equal(scaled, numpy.full(4, float(SIZE)), "premul")
    for n in range(100):
        comm.allreduce(scaled, op=comm.premul(float(n)))


def test_blocks():
    comm = STATE["comm"]
    every = inputs(6, "i4")
    got = numpy.zeros((SIZE, 6), "i4")
    comm.allgather(every[RANK], got)
    equal(got, numpy.stack(every), "allgather")
    lengths = [rank + 1 for rank in range(SIZE)]
    got = numpy.zeros(sum(lengths))
    comm.allgatherv(numpy.full(RANK + 1, float(RANK)), got, lengths)
    equal(got, numpy.repeat(numpy.arange(SIZE), lengths), "allgatherv")
    mine = numpy.zeros(2, "i4")
    comm.reduce_scatter(numpy.repeat(numpy.arange(SIZE, dtype="i4"), 2), mine)
    equal(mine, numpy.full(2, RANK * SIZE), "reduce_scatter")
    mine = numpy.zeros(RANK + 1)
    comm.reduce_scatterv(numpy.repeat(numpy.arange(float(SIZE)), lengths), mine, lengths)
    equal(mine, numpy.full(RANK + 1, float(RANK * SIZE)), "reduce_scatterv")
    for root in range(SIZE):
        mine = every[RANK].copy()
        comm.broadcast(mine, root)
        equal(mine, every[root], "broadcast")
        got = numpy.zeros((SIZE, 6), "i4") if RANK == root else None
        comm.gather(every[RANK], got, root)
        if RANK == root:
            equal(got, numpy.stack(every), "gather")
        mine = numpy.zeros(6, "i4")
        comm.scatter(numpy.stack(every) if RANK == root else None, mine, root)
        equal(mine, every[RANK], "scatter")
        got = numpy.zeros(sum(lengths)) if RANK == root else None
        comm.gatherv(numpy.full(RANK + 1, float(RANK)), got, lengths if RANK == root else None, root)
        if RANK == root:
            equal(got, numpy.repeat(numpy.arange(SIZE), lengths), "gatherv")
        mine = numpy.zeros(RANK + 1)
        whole = numpy.repeat(numpy.arange(float(SIZE)), lengths)
        comm.scatterv(whole if RANK == root else None, mine, lengths if RANK == root else None, root)
        equal(mine, numpy.full(RANK + 1, float(RANK)), "scatterv")
    got = numpy.zeros(SIZE * 2)
    comm.alltoall(numpy.repeat(numpy.arange(float(SIZE)) + 10 * RANK, 2), got)
    equal(got, numpy.repeat(numpy.arange(SIZE) * 10.0 + RANK, 2), "alltoall")
    sent = [target + 1 for target in range(SIZE)]
    got = numpy.zeros(SIZE * (RANK + 1))
    comm.alltoallv(numpy.repeat(numpy.arange(float(SIZE)) + 10 * RANK, sent), sent, got, [RANK + 1] * SIZE)
    equal(got, numpy.repeat(numpy.arange(SIZE) * 10.0 + RANK, RANK + 1), "alltoallv")
    comm.barrier()


def test_send_and_receive():
    comm = STATE["comm"]
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    got = numpy.zeros(1000)
    comm.sendrecv(numpy.full(1000, float(RANK)), after, got, before)
    equal(got, numpy.full(1000, float(before)), "sendrecv")
    pending = [comm.irecv(got[n : n + 1], before) for n in range(20)]
    with STATE["client"].group():
        pending += [comm.isend(numpy.full(1, float(n)), after) for n in range(20)]
    rocecomm.wait_all(pending)
    equal(got[:20], numpy.arange(20.0), "a batch")


def test_refused():
    comm = STATE["comm"]
    fixed = numpy.zeros(3)
    fixed.flags.writeable = False
    for kind, call, words in (
        (ValueError, lambda: comm.allreduce(numpy.zeros((4, 4)).T), "not contiguous"),
        (ValueError, lambda: comm.allreduce(fixed), "read-only"),
        (TypeError, lambda: comm.allreduce(numpy.zeros(3, "U3")), "no type of rocecomm"),
        (TypeError, lambda: comm.allreduce(numpy.zeros(3, ">f4")), "no type of rocecomm"),
        (TypeError, lambda: comm.allreduce([1.0, 2.0]), "is a list"),
        (TypeError, lambda: comm.allreduce(numpy.zeros(3), numpy.zeros(3, "f4")), "different types"),
        (ValueError, lambda: comm.allgather(numpy.zeros(3), numpy.zeros(SIZE * 3 + 1)), "blocks of one length"),
        (rocecomm.InvalidError, lambda: comm.broadcast(numpy.zeros(3), SIZE), "root"),
        (rocecomm.InvalidError, lambda: comm.allreduce(numpy.zeros(3), op=Op.BAND), ""),
    ):
        raises(kind, call, words)
    mine = numpy.ones(3)
    comm.allreduce(mine)
    equal(mine, numpy.full(3, float(SIZE)), "after refusals")


class OnlyDlpack:
    """Speaks DLPack and nothing else."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_dlpack():
    mine = numpy.arange(12.0).reshape(3, 4)
    STATE["comm"].allreduce(OnlyDlpack(mine))
    equal(mine, SIZE * numpy.arange(12.0).reshape(3, 4), "DLPack")
    raises(ValueError, lambda: STATE["comm"].allreduce(OnlyDlpack(mine.T)), "not contiguous")


def test_shared_memory():
    client, comm = STATE["client"], STATE["comm"]
    for _ in range(20):
        mine = client.empty((100, 1000), "f4")
        check(client.is_shared(mine.ctypes.data, mine.nbytes), "empty() is not shared")
        mine[:] = RANK
        comm.allreduce(mine)
        equal(mine, numpy.full((100, 1000), sum(range(SIZE)), "f4"), "shared")
        part = mine[10:20]
        del mine
        comm.allreduce(part)
        equal(part, numpy.full((10, 1000), SIZE * sum(range(SIZE)), "f4"), "a view that outlives its array")


def test_requests():
    comm, client = STATE["comm"], STATE["client"]
    requests = [comm.iallreduce(numpy.full(10, float(n))) for n in range(700)]
    rocecomm.wait_all(requests, timeout=60)
    requests = [comm.iallreduce(numpy.zeros(1000)) for n in range(5)]
    left = list(requests)
    while left:
        del left[rocecomm.wait_any(left, timeout=60)]
    fd = client.event_fd()
    request = comm.ibarrier()
    while not request.test():
        check(select.select([fd], [], [], 20)[0], "the descriptor was not readable")
        client.event_clear()
    if RANK == 0:
        request = comm.iallreduce(numpy.zeros(3))
        begun = time.monotonic()
        raises(rocecomm.WaitTimeout, lambda: request.wait(0.2), "it goes on")
        check(0.15 < time.monotonic() - begun < 5, "the time-out came at the wrong time")
        check(not request.test(), "it ended alone")
        comm.send(numpy.zeros(1), 1)
        request.wait()
    else:
        if RANK == 1:
            comm.recv(numpy.zeros(1), 0)
        comm.allreduce(numpy.zeros(3))


def test_waiting_lets_threads_run():
    comm = STATE["comm"]
    if RANK == 0:
        request = comm.iallreduce(numpy.zeros(3))
        turns = []
        thread = threading.Thread(target=lambda: [turns.append(n) or time.sleep(0.01) for n in range(10)])
        thread.start()
        raises(rocecomm.WaitTimeout, lambda: request.wait(0.5))
        check(len(turns) == 10, f"the other thread ran {len(turns)} turns of 10")
        comm.send(numpy.zeros(1), 1)
        request.wait()
    else:
        if RANK == 1:
            comm.recv(numpy.zeros(1), 0)
        comm.allreduce(numpy.zeros(3))


def test_interrupt():
    """Ctrl-C leaves a wait at once."""
    comm = STATE["comm"]
    if RANK == 0:
        request = comm.iallreduce(numpy.zeros(3))
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        begun = time.monotonic()
        raises(KeyboardInterrupt, request.wait)
        check(time.monotonic() - begun < 1, f"the wait was left after {time.monotonic() - begun:.2f} s")
        comm.send(numpy.zeros(1), 1)
        request.wait()
    else:
        if RANK == 1:
            comm.recv(numpy.zeros(1), 0)
        comm.allreduce(numpy.zeros(3))


def test_interrupted_join():
    """Ctrl-C leaves a join that waits for other ranks."""
    if RANK == 0:
        unique = STATE["client"].unique_id()
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        begun = time.monotonic()
        raises(KeyboardInterrupt, lambda: STATE["client"].communicator(unique, 0, 2, join_timeout=5))
        check(time.monotonic() - begun < 1, f"the join was left after {time.monotonic() - begun:.2f} s")
        time.sleep(5)  # its thread ends with the daemon's answer
    STATE["comm"].barrier()


def test_communicators():
    comm = STATE["comm"]
    check((comm.rank, comm.size, comm.hosts) == (RANK, SIZE, 1), f"{comm.rank} {comm.size} {comm.hosts}")
    check(comm.path and comm.host_name(comm.host_of(RANK)) and comm.error() is None, "about it")
    half = comm.split(RANK % 2, -RANK)
    members = [r for r in reversed(range(SIZE)) if r % 2 == RANK % 2]
    check((half.rank, half.size) == (members.index(RANK), len(members)), "split")
    mine = numpy.full(3, float(RANK))
    half.allreduce(mine)
    equal(mine, numpy.full(3, float(sum(members))), "in a split")
    check((comm.split(-1) is None) and comm.dup().size == SIZE, "split into none, dup")
    unique = numpy.frombuffer(STATE["client"].unique_id(), "u1").copy()
    comm.broadcast(unique, 0)
    other = STATE["client"].communicator(unique.tobytes(), RANK, SIZE, arrival_timeout=60)
    other.allreduce(mine)
    pending = other.irecv(numpy.zeros(3), (RANK + 1) % SIZE)
    comm.barrier()
    if RANK == 0:
        other.abort()
    error = raises(rocecomm.RoceError, lambda: pending.wait(30))
    check(error.name and other.error() is not None, "an aborted communicator has no error")


def test_fork():
    comm = STATE["comm"]
    child = os.fork()
    if child == 0:
        try:
            comm.allreduce(numpy.zeros(3))
        except rocecomm.RoceError as error:
            os._exit(0 if error.status == 17 else 2)
        os._exit(3)
    check(os.waitpid(child, 0)[1] == 0, "the child was not refused")
    comm.barrier()


if __name__ == "__main__":
    sys.exit(main(globals(), begin, end))
