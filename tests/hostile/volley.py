"""Sends frames and counts what comes back, with little effort of its own: on two cores an attacker must not be what honest
clients wait for. Its threads give way to all others."""

import os
import socket
import struct
import threading
import time

NICE = 10
CONNECT_SECONDS, ANSWER_SECONDS, WAITING_SECONDS = 10, 20, 1.0
UNREAD_SECONDS = 3.0
CHUNK_BYTES = 1 << 20
ANSWERED, CLOSED, SILENT = "answered", "closed", "no answer"


class Line:
    """One connection of an attacker."""

    def __init__(self, address):
        self.socket = socket.create_connection(address, CONNECT_SECONDS)
        self.buffer = memoryview(bytearray(CHUNK_BYTES))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data, deadline):
        """Whether all of it was taken in time."""
        view = memoryview(data)
        while view:
            try:
                self.socket.settimeout(max(0.001, deadline - time.monotonic()))
                view = view[self.socket.send(view):]
            except OSError:
                # Closed, or not taken in time: reading will tell.
                return False
        return True

    def answer(self, deadline):
        """(what came, bytes of the answer)."""
        head, state = self.take(4, deadline)
        if state != ANSWERED:
            return state, 0
        size, = struct.unpack(">i", head)
        _, state = self.take(size, deadline)
        return state, size

    def take(self, count, deadline):
        left, last = count, b""
        while left:
            self.socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                received = self.socket.recv_into(self.buffer, min(left, CHUNK_BYTES))
            except TimeoutError:
                return last, SILENT
            except OSError:
                received = 0
            if not received:
                return last, CLOSED
            if count <= CHUNK_BYTES:
                last += bytes(self.buffer[:received])
            left -= received
        return last, ANSWERED


def give_way():
    # On Linux this is of the calling thread alone.
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


def beside(works):
    """Runs all of `works` at once, each in a thread of its own; their results."""
    results = [None] * len(works)

    def run(at, work):
        give_way()
        try:
            results[at] = work()
        except OSError as error:
            results[at] = [(f"{error}", CLOSED, 0)]

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def each_alone(address, frames, seconds=ANSWER_SECONDS):
    """Every frame on a connection of its own, one after the other: [(what, what came, bytes)]."""
    def work():
        came = []
        for what, data in frames:
            with Line(address) as line:
                deadline = time.monotonic() + seconds
                line.send(data, deadline)
                came.append((what, *line.answer(deadline)))
        return came

    return beside([work])[0]


def repeated(address, frames, times, connections):
    """Frames many times over each of the connections, sent before the answers are read."""
    data = b"".join(data for _, data in frames)

    def work():
        came = []
        with Line(address) as line:
            deadline = time.monotonic() + ANSWER_SECONDS
            sender = threading.Thread(target=lambda: (give_way(), line.send(data * times, deadline)))
            sender.start()
            for what, _ in frames * times:
                came.append((what, *line.answer(deadline)))
                if came[-1][1] != ANSWERED:
                    break
            line.socket.close()
            sender.join()
        return came

    return [one for all_of in beside([work] * connections) for one in all_of]


def unread(address, frames, times, connections):
    """Frames many times over each of the connections, whose answers nobody reads for a while."""
    data = b"".join(data for _, data in frames)

    def work():
        with Line(address) as line:
            deadline = time.monotonic() + UNREAD_SECONDS
            line.send(data * times, deadline)
            time.sleep(max(0, deadline - time.monotonic()))
        return [(frames[0][0], ANSWERED, 0)]

    return [one for all_of in beside([work] * connections) for one in all_of]
