"""Whether a copy of an image that is being written to is of one moment."""

import mmap
import os
import threading
import time

from disk import attach, clone

BLOCK = 4096
IMAGE_BYTES = 1 << 30
# So that a copy takes long enough for several writes.
EXTENTS = 2000
COPIES = 40
PLACES = (0, IMAGE_BYTES // 2, IMAGE_BYTES - BLOCK)


class Writer:
    """Writes a number to the first, the middle and the last block, one after the other, and then the next number
    the other way round. In what was there at one moment each place is as new as the next on the way, or one newer."""

    def __init__(self, device):
        self.device = device
        self.buffer = mmap.mmap(-1, BLOCK)
        self.number, self.stopping = 0, False
        self.thread = threading.Thread(target=self.run)

    def __enter__(self):
        for number in range(EXTENTS):
            self.write(BLOCK * (1 + number * 131 % (IMAGE_BYTES // BLOCK - 2)))
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopping = True
        self.thread.join()

    def write(self, place):
        self.buffer[:8] = self.number.to_bytes(8, "little")
        os.pwritev(self.device, [self.buffer], place)

    def run(self):
        while not self.stopping:
            self.number += 1
            for place in way(self.number):
                self.write(place)


def way(number):
    return PLACES if number % 2 else PLACES[::-1]


def read(path):
    with open(path, "rb") as image:
        return {place: int.from_bytes(os.pread(image.fileno(), 8, place), "little") for place in PLACES}


def of_one_moment(found):
    newest = max(found.values())
    numbers = [found[place] for place in way(newest)]
    return numbers == sorted(numbers, reverse=True) and numbers[-1] >= newest - 1


def check(disk):
    """Copies an image again and again under direct writes."""
    image, copy = disk.path("moment"), disk.path("moment-copy")
    disk.make_image(image, IMAGE_BYTES)
    plain, name = attach(image, direct=True)
    device = os.open(name, os.O_RDWR | os.O_DIRECT)
    os.close(plain)
    between, seconds = 0, 0
    try:
        with Writer(device) as writer:
            for _ in range(COPIES):
                before, after = clone(image, copy)
                seconds = max(seconds, (after - before) / 1e9)
                found = read(copy)
                assert of_one_moment(found), f"a copy mixes moments: {found}"
                between += len(set(found.values())) > 1
                time.sleep(0.005)
    finally:
        os.close(device)
        disk.forget([image, copy])
    # Otherwise the copies did not meet the writer at work, and all this says nothing.
    assert between > 0, f"none of {COPIES} copies fell between two of {3 * writer.number} writes"
    return f"{COPIES} copies during {3 * writer.number} writes, {between} between two; " \
           f"at most {seconds * 1000:.0f} ms each"
