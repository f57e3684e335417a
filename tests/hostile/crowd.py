"""Many connections at once, from one thread."""

import select
import socket
import time

# Linux: a source address without a port, so that ports are not used up for all other addresses.
IP_BIND_ADDRESS_NO_PORT = 24


def connected(address, source=None):
    one = socket.socket()
    one.settimeout(5)
    if source:
        one.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        one.bind((source, 0))
    one.connect(address)
    one.setblocking(False)
    return one


class Crowd:
    def __init__(self, address, count, source=None):
        self.count, self.begun = count, time.monotonic()
        self.open = {}
        for _ in range(count):
            one = connected(address, source)
            self.open[one.fileno()] = one

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for one in self.open.values():
            one.close()

    def say(self, data):
        """To all that are still open; what cannot be sent at once is left out."""
        for one in list(self.open.values()):
            try:
                one.send(data)
            except BlockingIOError:
                pass
            except (BrokenPipeError, ConnectionResetError):
                self.gone(one)

    def drip(self, data, interval, seconds):
        """A byte of `data` after the other, and the last one again and again."""
        begin, at = time.monotonic(), 0
        while self.open and time.monotonic() < begin + seconds:
            self.say(data[at:at + 1])
            at = min(at + 1, len(data) - 1)
            self.listen(interval)

    def gone(self, one):
        del self.open[one.fileno()]
        one.close()

    def listen(self, seconds, until=lambda heard: False):
        """Reads what comes, for so long or until this is true of what was read, and lets go of what the server closes;
        what was read, by connection."""
        poll, heard = select.poll(), {}
        for number in self.open:
            poll.register(number, select.POLLIN)
        deadline = time.monotonic() + seconds
        while self.open and not until(heard):
            left = max(0, deadline - time.monotonic())
            events = poll.poll(left * 1000)
            # What came while this program stood still has come in time.
            if not events and not left:
                break
            for number, _ in events:
                one = self.open[number]
                try:
                    data = one.recv(65536)
                except BlockingIOError:
                    continue
                except ConnectionResetError:
                    data = b""
                if data:
                    heard[number] = heard.get(number, b"") + data
                else:
                    poll.unregister(number)
                    self.gone(one)
        return heard

    def all_closed(self, seconds):
        """The server has closed every one, so many seconds after the first was opened."""
        self.listen(max(0.01, self.begun + seconds - time.monotonic()))
        assert not self.open, f"{len(self.open)} of {self.count} connections are open {seconds} s after they began"
        return f"{self.count} connections"
