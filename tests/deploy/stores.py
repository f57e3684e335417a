"""An etcd and an object store for all cases, started when the first one asks."""

import sys

from suite import place
from suite.ports import free_address

sys.path[:0] = [str(place.ROOT / "tests" / name) for name in ("cluster", "objects")]

from machines import Etcd  # noqa: E402
from store import CREDENTIALS, Minio  # noqa: E402

BUCKET = "records"


class Stores:
    USER, PASSWORD = CREDENTIALS.user, CREDENTIALS.password

    def __init__(self, directory):
        self.directory = directory
        self.running = {}

    @property
    def store(self):
        """The address of the store, in which there is a bucket."""
        if "store" not in self.running:
            minio = Minio(self.directory, free_address())
            self.running["store"] = minio
            minio.start()
            minio.s3.make_bucket(BUCKET)
        return f"http://{self.running['store'].address}"

    @property
    def etcd(self):
        """The address of an etcd."""
        if "etcd" not in self.running:
            etcd = Etcd(self.directory, None, 1)
            self.running["etcd"] = etcd
            etcd.start()
        return self.running["etcd"].endpoints

    def end(self):
        for one in self.running.values():
            one.end()
