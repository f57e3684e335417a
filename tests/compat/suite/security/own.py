"""What only a server of ours has: users by its own command, and a start that is refused where it would be unsafe."""

import os
import re
import subprocess
import time

from suite import place as places
from suite.ports import free_address, free_port
from suite.server import environment

from .configured import ConfiguredServer

START_SECONDS = 5
NEWCOMER, NEW_PASSWORD, STRANGER = "newcomer", "quite new = odd, too", "stranger"
# Until what an administrator changed is in force; between two lines of the same denial.
SETTLED_SECONDS, DENIAL_SECONDS = 0.3, 10


def cases(place):
    if not place.server.own:
        return
    yield "ours: a user made, listed and deleted by mainstem user", 60, lambda: users(place)
    for name, listener in (("plain", "PLAINTEXT://0.0.0.0"), ("log-ins without TLS", "SASL_PLAINTEXT://0.0.0.0"),
                           ("TLS without log-ins", "SSL://0.0.0.0")):
        yield f"ours: {name} on all addresses is refused", 20, lambda listener=listener: unsafe(place, listener)
    yield "ours: denials and changes are in the audit log", 60, lambda: audited(place)
    yield "ours: private keys in each of their forms", 30, lambda: key_forms(place)
    yield "ours: a key in the settings, which are shown without it", 30, lambda: inline(place)


def mainstem(*arguments, given=None):
    return subprocess.run([places.MAINSTEM, *arguments], capture_output=True, text=True, input=given,
                          env=environment(), timeout=START_SECONDS)


def well(*arguments, given=None):
    done = mainstem(*arguments, given=given)
    assert done.returncode == 0, f"{' '.join(map(str, arguments))}: {done.returncode}: {done.stderr}"
    return done.stdout


def users(place):
    bootstrap = ("--bootstrap", place.server.addresses["INTERNAL"])
    well("user", "create", NEWCOMER, "--mechanism", "SCRAM-SHA-512", "--password-file", "-", *bootstrap,
         given=NEW_PASSWORD)
    assert NEWCOMER in well("user", "list", *bootstrap).split(), "it is not listed"
    ways = [place.server.connect("TLSLOGIN", mechanism, NEWCOMER, NEW_PASSWORD)
            for mechanism in ("SCRAM-SHA-512", "PLAIN")]
    for connect in ways:
        place.clients.done("probe", connect=connect)
    other = place.server.connect("TLSLOGIN", "SCRAM-SHA-256", NEWCOMER, NEW_PASSWORD)
    place.clients.refused("SASL_AUTHENTICATION_FAILED", connect=other)
    well("user", "delete", NEWCOMER, *bootstrap)
    time.sleep(0.2)
    for connect in ways:
        place.clients.refused("SASL_AUTHENTICATION_FAILED", connect=connect)


def audited(place):
    """As docs/security.md shows the lines: a denial once in ten seconds, each change."""
    log, topics = place.server.server.log_path, ("audited-one", "audited-two")
    before = len(log.read_text())
    place.admin.create_topics(*topics)
    place.admin.set_passwords("SCRAM-SHA-512", {STRANGER: NEW_PASSWORD})
    time.sleep(SETTLED_SECONDS)
    who = place.server.connect("TLSLOGIN", "SCRAM-SHA-512", STRANGER, NEW_PASSWORD)
    begun = time.monotonic()
    for _ in range(2):
        place.clients.refused("TOPIC_AUTHORIZATION_FAILED", operation="produce", connect=who, topic=topics[0], values=["x"])
    quick = time.monotonic() - begun < DENIAL_SECONDS
    place.admin.grant(f"User:{STRANGER}", ("topic", topics[0], "WRITE"))
    place.admin.take(f"User:{STRANGER}", ("topic", topics[0], "WRITE"))
    place.admin.forget(STRANGER, "SCRAM-SHA-512")
    lines = [line for line in log.read_text()[before:].splitlines() if " audit: " in line]

    def said(pattern):
        return [line for line in lines if re.search(pattern, line)]

    origin = r'principal="User:[^"]+" host=127\.0\.0\.1 listener="INTERNAL"'
    for topic in topics:
        created = said(rf'INFO audit: created topic {origin} which="{topic}" details="partitions 1, ')
        assert len(created) == 1, f"{topic} was created, and {len(created)} lines say so: {lines}"
    for change in ("added an ACL", "removed an ACL"):
        assert len(said(rf'INFO audit: {change} {origin} which="{topics[0]}"')) == 1, f"{change}: {lines}"
    assert len(said(rf'INFO audit: .* {origin} which="{STRANGER}"')) == 2, f"the password set and removed: {lines}"
    denials = said(rf'INFO audit: denied principal="User:{STRANGER}" host=127\.0\.0\.1 listener="TLSLOGIN" '
                   rf'client_id="[^"]*" operation=\w+ resource=Topic name="{topics[0]}" rule=no ACL')
    assert denials, f"no line of the denial: {lines}"
    operations = {re.search(r"operation=(\w+)", line)[1] for line in denials}
    assert not quick or len(denials) == len(operations), f"denied more often than once in ten seconds: {denials}"


def unsafe(place, listener):
    directory = place.directory / f"unsafe-{listener.partition(':')[0]}"
    directory.mkdir()
    server = ConfiguredServer(None, directory, {
        "listeners": f"{listener}:{free_port()}", "ssl.keystore.location": place.certificates["server"],
        "ssl.keystore.type": "PEM", "advertised.listeners": f"{listener.replace('0.0.0.0', '127.0.0.1')}:9"})
    done = subprocess.run(server.command(), capture_output=True, text=True, env=environment(), timeout=START_SECONDS)
    assert done.returncode not in (0, -6), f"it ended with {done.returncode}"
    assert "allow.insecure.listeners" in done.stderr, done.stderr[-400:]


def key_forms(place):
    """PKCS#8 is what all others use; RSA in PKCS#1 and EC in SEC1 are what openssl writes by itself, or did."""
    directory = place.directory / "keys"
    directory.mkdir()
    made, folder = place.certificates, place.certificates.folder
    made.openssl("genrsa", "-traditional", "-out", "pkcs1.key", "2048")
    made.openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "sec1.key")
    addresses, settings = {}, {"ssl.keystore.type": "PEM", "listener.security.protocol.map": "PKCS1:SSL,SEC1:SSL"}
    for name, title in (("pkcs1", "RSA PRIVATE KEY"), ("sec1", "EC PRIVATE KEY")):
        assert f"BEGIN {title}" in (folder / f"{name}.key").read_text(), f"openssl made no {title}"
        made.certify(name)
        addresses[name] = free_address()
        settings[f"listener.name.{name}.ssl.keystore.type"] = "PEM"
        settings[f"listener.name.{name}.ssl.keystore.location"] = made[name]
    settings["listeners"] = ",".join(f"{name.upper()}://{address}" for name, address in addresses.items())
    with ConfiguredServer(addresses["sec1"], directory, settings):
        for address in addresses.values():
            place.clients.done("probe", connect={**place.server.connect("TLS"), "bootstrap": address})


def inline(place):
    """The PEM texts themselves are settings (KIP-651), and are secrets as far as they are keys."""
    folder = place.certificates.folder
    key = (folder / "server.key").read_text()
    secret = key.splitlines()[1]
    os.environ["TESTS_KEY"] = key
    for name, given, shown in (("as it is", key, "[hidden]"), ("by reference", "${env:TESTS_KEY}", "${env:TESTS_KEY}")):
        directory = place.directory / f"key {name}"
        directory.mkdir()
        address = free_address()
        server = ConfiguredServer(address, directory, {
            "listeners": f"SSL://{address}", "ssl.keystore.type": "PEM", "ssl.keystore.key": given,
            "ssl.keystore.certificate.chain": f"${{file:{folder / 'server.crt'}}}"})
        said = well("config", "--config", server.config)
        assert secret not in said and f'ssl.keystore.key = "{shown}"' in said, f"the key, {name}, is shown otherwise"
        with server:
            place.clients.done("probe", connect={**place.server.connect("TLS"), "bootstrap": address})
            assert secret not in server.log_path.read_text(), f"the key, {name}, is in the log"
