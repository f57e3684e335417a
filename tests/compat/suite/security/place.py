"""What every case has: a server with all kinds of listeners, the clients, an administrator, certificates, tokens."""

from . import mechanisms, own, raw_cases, refusals, rights, sessions
from .certificates import Certificates
from .clients import Clients
from .servers import SecuredKafka, SecuredMainstem
from .tokens import Tokens

FAMILIES = (mechanisms, refusals, raw_cases, sessions, rights, own)


class Place:
    def __init__(self, directory, kafka, show, only):
        self.directory, self.kafka, self.show, self.only = directory, kafka, show, only
        self.certificates = make_certificates(directory / "certificates")
        self.tokens = Tokens(directory / "tokens")
        of = SecuredKafka if kafka else SecuredMainstem
        self.server = of(directory / "server", self.certificates, self.tokens)
        self.clients = Clients(directory)
        self.admin = None

    def __enter__(self):
        try:
            self.server.__enter__()
            self.admin = self.server.admin
            mechanisms.prepare(self)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.clients.__exit__()
        self.server.__exit__()

    def cases(self):
        """Name, limit in seconds, case."""
        for family in FAMILIES:
            yield from family.cases(self)

    def last(self):
        if self.server.own:
            yield "server: stops on SIGTERM", 40, lambda: f"{self.server.server.stop():.1f} s"


def make_certificates(folder):
    made = Certificates(folder)
    made.make("server")
    made.make("reloaded")
    made.make("expired", expired=True)
    made.make("elsewhere", "DNS:elsewhere.example")
    made.make("client", subject="/O=Tests/CN=Client")
    made.make("plainly")
    made.make("nobody", subject="/O=Nobody/CN=Client")
    made.make("between", signs=True)
    made.make("chained", authority="between")
    made.make("descended", subject="/O=Tests/CN=Client", authority="between")
    made.make("late", subject="/O=Tests/CN=Client", expired=True)
    made.make("foreign", subject="/O=Tests/CN=Client", authority="stranger")
    return made
