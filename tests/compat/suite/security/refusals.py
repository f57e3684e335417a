"""What is refused, and how each client shows it."""

from .users import SCRAM

# Where a client waits for nothing but its own patience.
IMPATIENT_SECONDS = 3
INVALID_TOKEN = {"java": r'"status":"invalid_token"', "confluent": r'"status":"invalid_token"'}


def cases(place):
    server = place.server

    def case(name, connect, code, text="", **arguments):
        return f"refused: {name}", 40, lambda: place.clients.refused(code, text, connect=connect, **arguments)

    for listener in ("LOGIN", "TLSLOGIN"):
        for mechanism in ("PLAIN", *SCRAM):
            words = f"invalid credentials with SASL mechanism {mechanism}" if mechanism in SCRAM else \
                "Invalid username or password"
            for what, changed in (("wrong password", {"password": "wrong"}), ("unknown user", {"user": "mallory"})):
                yield case(f"{what}, {mechanism}, {listener.lower()}", server.connect(listener, mechanism, **changed),
                           "SASL_AUTHENTICATION_FAILED", words)
    for mechanism in ("PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"):
        yield case(f"{mechanism} is not enabled", server.connect("SCRAMONLY", mechanism), "UNSUPPORTED_SASL_MECHANISM",
                   {"java": r"enabled mechanisms are \[SCRAM-SHA-256\]", "confluent": "SCRAM-SHA-256"})

    verify = {"confluent": "certificate verify failed"}
    yield case("server's certificate has expired", server.connect("EXPIRED"), "TLS", {**verify, "franz": "has expired"})
    yield case("server's certificate is of another host", server.connect("ELSEWHERE"), "TLS",
               {**verify, "franz": "cannot validate certificate for 127.0.0.1"})
    yield case("server's certificate is of an unknown authority", server.connect("TLS", authority="stranger"), "TLS",
               {**verify, "franz": "unknown authority"})
    yield case("no client's certificate", server.connect("MUTUAL"), "TLS")
    for name, certificate in (("has expired", "late"), ("is of an unknown authority", "foreign")):
        yield case(f"client's certificate {name}", server.connect("MUTUAL", certificate=certificate), "TLS")
    yield case("client's certificate has expired where none is needed",
               server.connect("REQUESTED", certificate="late"), "TLS")

    for name, changed in (
        ("has expired", {"seconds": -3600}), ("is not valid yet", {"nbf": 4_000_000_000}),
        ("is for another audience", {"aud": "others"}), ("is of another issuer", {"iss": "another issuer"}),
        ("has an unknown key", {"key": "unknown"}), ("has another key's signature", {"key": "unknown", "kid": "rsa"}),
        ("has no signature", {"algorithm": "none"}), ("never expires", {"exp": None}), ("names nobody", {"sub": None}),
        ("does not say when it was made", {"iat": None}),
    ):
        token = server.tokens.make(**changed)
        yield case(f"token {name}", server.connect("LOGIN", "OAUTHBEARER", token=token), "SASL_AUTHENTICATION_FAILED",
                   INVALID_TOKEN)
    yield case("token is none", server.connect("LOGIN", "OAUTHBEARER", token="nothing"), "SASL_AUTHENTICATION_FAILED",
               INVALID_TOKEN)

    for name, connect in (
        ("plain client at TLS", server.connect("TLS", protocol="PLAINTEXT")),
        ("log-in without TLS at TLS", server.connect("TLSLOGIN", "PLAIN", protocol="SASL_PLAINTEXT")),
        ("TLS client at a plain listener", server.connect("INTERNAL", protocol="SSL")),
        ("TLS client at a log-in without TLS", server.connect("LOGIN", "PLAIN", protocol="SASL_SSL")),
        ("no log-in where one is needed", server.connect("LOGIN", protocol="PLAINTEXT")),
        ("no log-in where one is needed, in TLS", server.connect("TLSLOGIN", protocol="SSL")),
    ):
        yield case(name, connect, "CLOSED", seconds=IMPATIENT_SECONDS)
    for name, connect in (("plain", server.connect("INTERNAL", "PLAIN", protocol="SASL_PLAINTEXT")),
                          ("TLS", server.connect("TLS", "SCRAM-SHA-256", protocol="SASL_SSL"))):
        yield case(f"log-in where there is none, {name}", connect, "ILLEGAL_SASL_STATE",
                   {"java": r"enabled mechanisms are \[\]"})
