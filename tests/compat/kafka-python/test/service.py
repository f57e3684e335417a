"""Stands in for a module that the source package leaves out: how its fixtures hold a server."""


class ExternalService:
    """A server that runs already."""

    def __init__(self, host, port):
        pass

    def stop(self):
        pass

    def dump_logs(self):
        pass


class SpawnedService:
    """A server that a test starts for itself, from a distribution of Kafka, which is not here."""

    def __init__(self, *_):
        raise RuntimeError("there is no distribution of Kafka to start a server from")
