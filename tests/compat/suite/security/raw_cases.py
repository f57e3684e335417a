"""Authentication said wrongly, on sockets: what is answered, and whether the connection is closed.

A script talks, and what it was answered has to be what its line in security.answers says: error codes, messages,
`closed` or `open`.
"""

import struct
import time
from concurrent.futures import ThreadPoolExecutor

from suite.place import COMPAT

from . import raw
from .raw import Raw, Scram
from .servers import REAUTHENTICATION_MS, RECEIVE_BYTES_MAX
from .users import PASSWORD

SHA256 = "SCRAM-SHA-256"
# Kafka takes no second log-in on a connection within a second.
AGAIN_SECONDS = 1.1
AT_ONCE = 8
ANSWERS = COMPAT / "security.answers"
scripts = []


def script(name, listener="LOGIN"):
    def add(talk):
        scripts.append((name, listener, talk))
        return talk
    return add


def scram(peer, user="alice", password=PASSWORD, mechanism=SHA256, final=None, **changed):
    """A log-in with one thing changed; `final` are changes of the last message."""
    peer.handshake(mechanism)
    client = Scram(mechanism, user, password, **changed)
    if peer.token(client.first()) and peer.last:
        peer.token(client.final(peer.last, **(final or {})))


def scripted_token(token, mechanism="PLAIN"):
    def talk(peer, place):
        peer.handshake(mechanism)
        peer.token(token)
    return talk


# What is right

for mechanism in ("PLAIN", SHA256, "SCRAM-SHA-512"):
    @script(f"{mechanism}: as it should be")
    def good(peer, place, mechanism=mechanism):
        peer.api_versions()
        raw.log_in(peer, mechanism, "alice", PASSWORD)
        peer.metadata()


@script("everything sent at once")
def pipelined(peer, place):
    peer.send(raw.api_versions() + raw.handshake("PLAIN") + raw.authenticate(f"\0alice\0{PASSWORD}".encode())
              + raw.metadata())
    peer.hear(lambda body: struct.unpack(">h", body[4:6])[0], "versions")
    peer.hear(peer.read_handshake, "handshake")
    peer.hear(lambda body: peer.read_token(body, 1), "token")
    peer.hear(peer.read_metadata, "metadata")


@script("byte for byte")
def slow(peer, place):
    for byte in raw.handshake("PLAIN"):
        peer.send(bytes([byte]))
    peer.hear(peer.read_handshake, "handshake")
    for byte in raw.authenticate(f"\0alice\0{PASSWORD}".encode()):
        peer.send(bytes([byte]))
    peer.hear(lambda body: peer.read_token(body, 1), "token")
    peer.metadata()


# SCRAM

@script("SCRAM: replayed")
def replayed(peer, place):
    client = Scram(SHA256, "alice", PASSWORD)
    with Raw(place.server.addresses["LOGIN"]) as overheard:
        overheard.handshake(SHA256)
        overheard.token(client.first())
        final = client.final(overheard.last)
        overheard.token(final)
        assert overheard.notes[1:] == ["token 0", "token 0"], f"the one to replay: {overheard.notes}"
    peer.handshake(SHA256)
    peer.token(client.first())
    peer.token(final)


@script("SCRAM: wrong proof")
def wrong_proof(peer, place):
    scram(peer, password="wrong")


@script("SCRAM: unknown user")
def unknown_user(peer, place):
    scram(peer, user="mallory")


@script("SCRAM: another nonce in the last message")
def other_nonce(peer, place):
    scram(peer, final={"nonce": "another"})


@script("SCRAM: the client's nonce alone in the last message")
def own_nonce(peer, place):
    scram(peer, nonce="fyko", final={"nonce": "fyko"})


@script("SCRAM: with channel binding")
def channel_binding(peer, place):
    scram(peer, header="p=tls-unique,,")


@script("SCRAM: with channel binding that the server is said to lack")
def channel_binding_lacked(peer, place):
    scram(peer, header="y,,")


@script("SCRAM: another header in the last message")
def other_header(peer, place):
    scram(peer, final={"binding": "y,,"})


@script("SCRAM: for another user")
def for_another(peer, place):
    scram(peer, header="n,a=bob,")


@script("SCRAM: for the same user")
def for_the_same(peer, place):
    scram(peer, header="n,a=alice,")


@script("SCRAM: no user")
def scram_nobody(peer, place):
    scram(peer, user="")


@script("SCRAM: a user with = as it stands")
def unescaped(peer, place):
    peer.handshake(SHA256)
    peer.token(b"n,,n=a=b,r=fyko")


@script("SCRAM: no nonce")
def no_nonce(peer, place):
    peer.handshake(SHA256)
    peer.token(b"n,,n=alice,r=")


@script("SCRAM: an extension that must be known")
def mandatory(peer, place):
    peer.handshake(SHA256)
    peer.token(b"n,,m=new,n=alice,r=fyko")


@script("SCRAM: an extension")
def extension(peer, place):
    peer.handshake(SHA256)
    peer.token(b"n,,n=alice,r=fyko,x=new")


for what, data in (("nothing", b""), ("garbage", b"garbage"), ("bytes that are no text", b"\xff\xfe\0\x01"),
                   ("a token of PLAIN", b"\0alice\0password")):
    script(f"SCRAM: {what} at first")(scripted_token(data, SHA256))


@script("SCRAM: garbage at last")
def garbage_last(peer, place):
    peer.handshake(SHA256)
    peer.token(Scram(SHA256, "alice", PASSWORD).first())
    peer.token(b"garbage")


@script("SCRAM: a last message without proof")
def no_proof(peer, place):
    peer.handshake(SHA256)
    client = Scram(SHA256, "alice", PASSWORD)
    peer.token(client.first())
    peer.token(client.final(peer.last).partition(b",p=")[0])


@script("SCRAM: the first message twice")
def first_twice(peer, place):
    peer.handshake(SHA256)
    client = Scram(SHA256, "alice", PASSWORD)
    peer.token(client.first())
    peer.token(client.first())


@script("SCRAM: SHA-512 after a handshake for SHA-256")
def other_digest(peer, place):
    peer.handshake(SHA256)
    client = Scram("SCRAM-SHA-512", "alice", PASSWORD)
    peer.token(client.first())
    peer.token(client.final(peer.last))


# PLAIN

for what, data in (
    ("wrong password", b"\0alice\0wrong"), ("unknown user", b"\0mallory\0wrong"),
    ("for another user", f"bob\0alice\0{PASSWORD}".encode()), ("for the same user", f"alice\0alice\0{PASSWORD}".encode()),
    ("no user", b"\0\0wrong"), ("no password", b"\0alice\0"), ("neither", b"\0\0"), ("nothing", b""),
    ("two parts", b"alice\0wrong"), ("four parts", f"\0alice\0{PASSWORD}\0".encode()),
    ("five parts", f"\0alice\0{PASSWORD}\0x\0y".encode()), ("garbage", b"garbage"),
    ("bytes that are no text", b"\0alice\0\xff\xfe"),
):
    script(f"PLAIN: {what}")(scripted_token(data))


# OAUTHBEARER

def bearer(token, header="n,,"):
    return f"{header}\1auth=Bearer {token}\1\1".encode()


@script("OAUTHBEARER: as it should be")
def oauth(peer, place):
    peer.handshake("OAUTHBEARER")
    peer.token(bearer(place.tokens.make()))
    assert peer.last == b"", f"it got {peer.last}"
    peer.metadata()


@script("OAUTHBEARER: a bad token")
def oauth_bad(peer, place):
    peer.handshake("OAUTHBEARER")
    peer.token(bearer(place.tokens.make(seconds=-3600)))
    peer.note(peer.last.decode())
    peer.token(b"\1")


@script("OAUTHBEARER: a bad token, and again instead of the end")
def oauth_insisting(peer, place):
    peer.handshake("OAUTHBEARER")
    peer.token(bearer(place.tokens.make(seconds=-3600)))
    peer.token(bearer(place.tokens.make()))


@script("OAUTHBEARER: for another user")
def oauth_for_another(peer, place):
    peer.handshake("OAUTHBEARER")
    peer.token(bearer(place.tokens.make(), "n,a=bob,"))
    peer.token(b"\1")


@script("OAUTHBEARER: for the same user")
def oauth_for_the_same(peer, place):
    peer.handshake("OAUTHBEARER")
    peer.token(bearer(place.tokens.make(), "n,a=alice,"))


@script("OAUTHBEARER: a token that has expired within the skew")
def oauth_skewed(peer, place):
    peer.handshake("OAUTHBEARER")
    peer.token(bearer(place.tokens.make(seconds=-10)))
    peer.metadata()


for what, data in (("nothing", b""), ("garbage", b"garbage"), ("no token", b"n,,\1\1"),
                   ("an empty token", b"n,,\1auth=Bearer \1\1"), ("another scheme", b"n,,\1auth=Basic abc\1\1"),
                   ("the end alone", b"\1")):
    script(f"OAUTHBEARER: {what}")(scripted_token(data, "OAUTHBEARER"))


# The order of requests

@script("a request before the log-in")
def before(peer, place):
    peer.metadata()


@script("a request before the log-in, after the versions")
def before_after_versions(peer, place):
    peer.api_versions()
    peer.metadata()


@script("a request between handshake and token")
def between(peer, place):
    peer.handshake("PLAIN")
    peer.metadata()


@script("a token before the handshake")
def no_handshake(peer, place):
    peer.token(f"\0alice\0{PASSWORD}".encode())


@script("two handshakes")
def two_handshakes(peer, place):
    peer.handshake("PLAIN")
    peer.handshake("PLAIN")


@script("the versions twice")
def versions_twice(peer, place):
    peer.api_versions()
    peer.api_versions()
    raw.log_in(peer, "PLAIN", "alice", PASSWORD)


@script("the versions between handshake and token")
def versions_between(peer, place):
    peer.handshake("PLAIN")
    peer.api_versions()


@script("versions of a version that is none")
def versions_unknown(peer, place):
    peer.api_versions(100)
    raw.log_in(peer, "PLAIN", "alice", PASSWORD)


@script("a token after the log-in")
def late_token(peer, place):
    raw.log_in(peer, "PLAIN", "alice", PASSWORD)
    peer.token(f"\0alice\0{PASSWORD}".encode())


@script("a handshake after the log-in")
def late_handshake(peer, place):
    raw.log_in(peer, "PLAIN", "alice", PASSWORD)
    peer.handshake("PLAIN")


@script("a log-in after a refused one")
def second_attempt(peer, place):
    peer.handshake("PLAIN")
    peer.token(b"\0alice\0wrong")
    raw.log_in(peer, "PLAIN", "alice", PASSWORD)


for what, mechanism in (("that is none", "NONE"), ("in small letters", "plain"), ("without a name", "")):
    @script(f"a mechanism {what}")
    def unknown_mechanism(peer, place, mechanism=mechanism):
        peer.handshake(mechanism)


@script("a mechanism that is not enabled", "SCRAMONLY")
def not_enabled(peer, place):
    peer.handshake("PLAIN")


@script("a handshake of a version that is none")
def handshake_version(peer, place):
    peer.handshake("PLAIN", 9)


@script("a token of a version that is none")
def token_version(peer, place):
    peer.handshake("PLAIN")
    peer.ask(raw.authenticate(f"\0alice\0{PASSWORD}".encode(), 9), lambda body: body[4:6].hex(), "token")


# Tokens without a request around them

@script("old handshake, PLAIN")
def old_plain(peer, place):
    peer.handshake("PLAIN", 0)
    peer.bare(f"\0alice\0{PASSWORD}".encode())
    peer.metadata()


@script("old handshake, SCRAM")
def old_scram(peer, place):
    peer.handshake(SHA256, 0)
    client = Scram(SHA256, "alice", PASSWORD)
    peer.bare(client.first())
    peer.bare(client.final(peer.last))
    client.check(peer.last)
    peer.metadata()


@script("old handshake, wrong password")
def old_wrong(peer, place):
    peer.handshake("PLAIN", 0)
    peer.bare(b"\0alice\0wrong")


@script("old handshake, then a token in a request")
def old_then_new(peer, place):
    peer.handshake("PLAIN", 0)
    peer.token(f"\0alice\0{PASSWORD}".encode())


@script("new handshake, then a token without a request")
def new_then_old(peer, place):
    peer.handshake("PLAIN")
    peer.bare(f"\0alice\0{PASSWORD}".encode())


@script("a token without handshake and request")
def bare_first(peer, place):
    peer.bare(f"\0alice\0{PASSWORD}".encode())


# Sizes

@script("a token too large")
def large(peer, place):
    peer.handshake("PLAIN")
    peer.token(b"\0alice\0" + b"x" * RECEIVE_BYTES_MAX)


@script("a token just as large as it may be")
def as_large(peer, place):
    peer.handshake("PLAIN")
    left = RECEIVE_BYTES_MAX - len(raw.authenticate(b"\0alice\0")) + 4
    peer.token(b"\0alice\0" + b"x" * left)


@script("a byte more than a token may have")
def byte_more(peer, place):
    peer.handshake("PLAIN")
    left = RECEIVE_BYTES_MAX - len(raw.authenticate(b"\0alice\0")) + 5
    peer.token(b"\0alice\0" + b"x" * left)


for what, size in (("0", 0), ("-1", -1), ("of 1 GiB", 1 << 30)):
    @script(f"a frame {'with a size ' if size < 1 else ''}{what}")
    def framed(peer, place, size=size):
        peer.send(struct.pack(">i", size))
        peer.end()


# Sessions that end (KIP-368)

def session(peer):
    peer.note(f"session of {peer.session_ms} ms")


@script("session: none where nothing ends it")
def endless(peer, place):
    raw.log_in(peer, SHA256, "alice", PASSWORD)
    session(peer)


@script("session: as long as the token")
def token_session(peer, place):
    peer.handshake("OAUTHBEARER")
    peer.token(bearer(place.tokens.make(seconds=100)))
    peer.note("as the token" if 98_000 <= peer.session_ms <= 100_000 else f"session of {peer.session_ms} ms")


@script("session: its length is said", "REAUTH")
def said_session(peer, place):
    raw.log_in(peer, SHA256, "alice", PASSWORD)
    session(peer)


@script("session: the token ends before it", "REAUTH")
def token_first(peer, place):
    peer.handshake("OAUTHBEARER")
    peer.token(bearer(place.tokens.make(seconds=2)))
    peer.note("as the token" if 500 <= peer.session_ms <= 2000 else f"session of {peer.session_ms} ms")
    peer.metadata()
    time.sleep(2.1)
    peer.metadata()


@script("session: its end is ignored", "REAUTH")
def ignored(peer, place):
    raw.log_in(peer, "PLAIN", "alice", PASSWORD)
    time.sleep(0.5)
    peer.metadata()
    time.sleep(REAUTHENTICATION_MS / 1000)
    peer.metadata()


def again(name):
    """A case that logs in, waits for as long as Kafka wants between two log-ins, and goes on."""
    def add(talk):
        @script(f"session: {name}", "REAUTH")
        def whole(peer, place):
            raw.log_in(peer, SHA256, "alice", PASSWORD)
            time.sleep(AGAIN_SECONDS)
            talk(peer)
        return talk
    return add


@again("logged in again")
def again_well(peer):
    raw.log_in(peer, SHA256, "alice", PASSWORD)
    session(peer)
    time.sleep(REAUTHENTICATION_MS / 1000 - 0.5)
    # The first one's end is over by now.
    peer.metadata()


@again("logged in again after its end")
def again_late(peer):
    time.sleep(REAUTHENTICATION_MS / 1000)
    raw.log_in(peer, SHA256, "alice", PASSWORD)
    peer.metadata()


@again("logged in again as another")
def again_other(peer):
    raw.log_in(peer, SHA256, "bob", PASSWORD)


@again("logged in again by another mechanism")
def again_mechanism(peer):
    raw.log_in(peer, "PLAIN", "alice", PASSWORD)
    peer.metadata()


@again("logged in again with a wrong password")
def again_wrong(peer):
    raw.log_in(peer, SHA256, "alice", "wrong")


@again("a request while it is logged in again")
def again_between(peer):
    peer.handshake(SHA256)
    peer.metadata()


@again("a token without handshake")
def again_token(peer):
    peer.token(b"garbage")


@script("session: logged in again at once", "REAUTH")
def again_soon(peer, place):
    raw.log_in(peer, SHA256, "alice", PASSWORD)
    peer.handshake(SHA256)


# Listeners without a log-in

@script("a handshake where there is no log-in", "INTERNAL")
def needless_handshake(peer, place):
    peer.handshake("PLAIN")
    peer.metadata()


@script("a token where there is no log-in", "INTERNAL")
def needless_token(peer, place):
    peer.token(f"\0alice\0{PASSWORD}".encode())
    peer.metadata()


def read_answers():
    """{name: [what Kafka says, what we may say instead]}"""
    found = {}
    for line in ANSWERS.read_text().splitlines():
        if line and not line.startswith("#"):
            name, *notes = line.split(" | ")
            if name.startswith("    or"):
                found[last].append(notes)
            else:
                last = name
                found[last] = [notes]
    return found


def talked(place, listener, talk):
    with Raw(place.server.addresses[listener]) as peer:
        seconds = raw.timed(lambda: talk(peer, place))
        peer.end()
    return peer.notes, seconds


def check(place, told, expected):
    notes, seconds = told.result()
    said = " | ".join(notes)
    if place.show:
        print(f"          {said} ({seconds:.2f} s)")
    wanted = expected[:1] if place.kafka else expected
    assert notes in wanted, f"{said}, and not {' or '.join(' | '.join(notes) for notes in wanted)}"


def cases(place):
    answers = read_answers()
    # Most of their time is waiting.
    with ThreadPoolExecutor(AT_ONCE) as executor:
        chosen = [(f"raw: {name}", executor.submit(talked, place, listener, talk), answers.pop(name, [[]]))
                  for name, listener, talk in scripts if not place.only or place.only in f"raw: {name}"]
        for name, told, expected in chosen:
            yield name, 30, lambda told=told, expected=expected: check(place, told, expected)
    if not place.only:
        yield "raw: every line of security.answers is used", 1, lambda: stale(answers)


def stale(answers):
    assert not answers, f"lines for nothing: {', '.join(answers)}"
