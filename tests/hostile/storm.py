#!/usr/bin/env python3
"""Connects and goes away again, so many times a second.

    storm.py HOST PORT SECONDS RATE SOURCE [AUTHORITY]

With an authority each is a whole handshake of TLS, as many as can be. Prints how many there were.
"""

import collections
import socket
import ssl
import struct
import sys
import time

from crowd import IP_BIND_ADDRESS_NO_PORT

# A connection is let go of when so many others have been made.
AT_ONCE = 100
BATCH_SECONDS = 0.01


def main():
    host, port, seconds, rate, source, *authority = sys.argv[1:]
    address, seconds, rate = (host, int(port)), float(seconds), int(rate)
    if authority:
        print(handshakes(address, seconds, authority[0]))
    else:
        print(connects(address, seconds, rate, source))


def connects(address, seconds, rate, source):
    made, under_way = 0, collections.deque()
    begin = time.monotonic()
    while (now := time.monotonic() - begin) < seconds:
        while made < now * rate:
            one = socket.socket()
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
            # A reset instead of an orderly end, which would leave no port free after a few seconds.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.bind((source, 0))
            one.connect_ex(address)
            made += 1
            under_way.append(one)
            if len(under_way) > AT_ONCE:
                under_way.popleft().close()
        time.sleep(BATCH_SECONDS)
    return made


def handshakes(address, seconds, authority):
    context, made, begin = ssl.create_default_context(cafile=authority), 0, time.monotonic()
    while time.monotonic() - begin < seconds:
        with socket.create_connection(address, 5) as one, context.wrap_socket(one, server_hostname=address[0]):
            made += 1
    return made


if __name__ == "__main__":
    main()
