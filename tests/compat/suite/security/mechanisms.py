"""Every way to log in works, with each client: records go in and come back the same."""

from .users import SCRAM, USERS

VALUES = [f"value {number}" for number in range(5)]
# What everybody who logs in as one of these may use: `open-*`. The principals of the certificates are what
# ssl.principal.mapping.rules makes of their names.
PRINCIPALS = [*USERS, "tests-client", "CN=plainly"]


def prepare(place):
    for principal in PRINCIPALS:
        place.admin.grant(f"User:{principal}", *((kind, "open-*", "ALL") for kind in ("topic", "group", "transaction")))


def round_trip(place, name, connect):
    """`connect` is a request's, or a function of the client's name."""
    topics = {client: f"open-{name}-{client}" for client in place.clients.workers}
    place.admin.create_topics(*topics.values())
    place.clients.done("produce", connect=connect, topic=topics.get, values=VALUES)
    found = place.clients.done("consume", connect=connect, topic=topics.get, count=len(VALUES),
                               group=lambda client: f"open-{name}-{client}")
    for client, values in found.items():
        assert values == VALUES, f"{client} got {values}"


def cases(place):
    server = place.server
    ways = [
        ("ssl", server.connect("TLS")),
        ("ssl-chain-of-authorities", server.connect("CHAINED")),
        ("ssl-by-host-name", server.connect("TLS", host="localhost")),
        ("ssl-certificate", server.connect("MUTUAL", certificate="client")),
        ("ssl-certificate-default-rule", server.connect("MUTUAL", certificate="plainly")),
        ("ssl-certificate-by-an-authority-between", server.connect("MUTUAL", certificate="descended")),
        ("ssl-certificate-requested", server.connect("REQUESTED", certificate="client")),
        ("ssl-certificate-requested-not-shown", server.connect("REQUESTED")),
    ]
    for listener in ("LOGIN", "TLSLOGIN"):
        protocol = server.connect(listener, "PLAIN")["protocol"].lower().replace("_", "-")
        for mechanism in ("PLAIN", *SCRAM):
            ways.append((f"{protocol}-{mechanism.lower()}", server.connect(listener, mechanism)))
        for key, algorithm in (("rsa", "rs256"), ("ec", "es256")):
            token = server.tokens.make(key)
            ways.append((f"{protocol}-oauthbearer-{algorithm}", server.connect(listener, "OAUTHBEARER", token=token)))
    for name, connect in ways:
        yield f"works: {name}", 30, lambda name=name, connect=connect: round_trip(place, name, connect)
    yield "works: the principal of a certificate is the one with the rights", 30, lambda: other_principal(place)


def other_principal(place):
    place.admin.create_topics("open-to-some")
    connect = place.server.connect("MUTUAL", certificate="nobody")
    return place.clients.refused("TOPIC_AUTHORIZATION_FAILED", operation="produce", connect=connect,
                                 topic="open-to-some", values=["never"])
