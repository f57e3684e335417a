"""Sessions that end while clients work (KIP-368), connections that go on while certificates change, and TLS sessions
that are taken up again."""

import re
import subprocess
import time

STREAM_SECONDS = 10
# A record every 20 ms, and slow machines.
RECORDS_MIN = 100


def cases(place):
    yield "sessions: clients log in again and lose nothing", 40, lambda: streams(place)
    yield "TLS: 1.2 and 1.3 are spoken, 1.1 is not", 20, lambda: versions(place)
    # Kafka takes up no session, and shows a new certificate when its settings are changed, not its files.
    if place.server.own:
        for version in ("1.3", "1.2"):
            yield f"TLS {version}: a session is taken up again", 20, lambda version=version: resumed(place, version)
        yield "TLS: a new certificate is shown, open connections go on", 30, lambda: reloaded(place)


def streams(place):
    mechanisms = ("SCRAM-SHA-256", "PLAIN", "OAUTHBEARER")
    for mechanism in mechanisms:
        # All at once: what takes long is waiting.
        topic = f"open-again-{mechanism}"
        place.admin.create_topics(topic)
        # The tokens' sessions end with the listener's too: they last an hour.
        place.clients.done("stream", connect=place.server.connect("REAUTH", mechanism), topic=topic, name=mechanism)
    time.sleep(STREAM_SECONDS)
    notes = []
    for mechanism in mechanisms:
        for name, state in place.clients.done("stop", name=mechanism).items():
            check_stream(f"{name}, {mechanism}", state)
            notes.append(state["sent"])
    return f"{sum(notes)} records"


def check_stream(who, state):
    assert not state["errors"], f"{who}: {state['errors'][:3]}"
    assert state["acknowledged"] == state["sent"] >= RECORDS_MIN, f"{who}: {state}"


def s_client(place, listener, *arguments):
    """What openssl says of a handshake."""
    command = ["openssl", "s_client", "-connect", place.server.addresses[listener], "-CAfile",
               place.certificates["authority"], "-verify_return_error", *arguments]
    # A moment, for the tickets of TLS 1.3 come behind the handshake.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True) as process:
        time.sleep(0.5)
        said, _ = process.communicate("Q\n", timeout=10)
    return said


def versions(place):
    for version in ("1_2", "1_3"):
        said = s_client(place, "TLS", f"-tls{version}")
        assert f"New, TLSv{version.replace('_', '.')}, Cipher is" in said, said[-600:]
    # openssl itself would not try otherwise.
    said = s_client(place, "TLS", "-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0")
    assert "Cipher is (NONE)" in said and "alert" in said, said[-600:]


def resumed(place, version):
    path = place.directory / f"session-{version}"
    only = "-tls" + version.replace(".", "_")
    begun = s_client(place, "TLS", only, "-sess_out", path)
    assert re.search(r"^New, TLSv", begun, re.MULTILINE), begun[-600:]
    taken = s_client(place, "TLS", only, "-sess_in", path)
    assert re.search(r"^Reused, TLSv", taken, re.MULTILINE), taken[-600:]
    assert "Verify return code: 0 (ok)" in taken, taken[-600:]


def serial_shown(place):
    said = s_client(place, "RELOADED", "-showcerts")
    return place.certificates.openssl("x509", "-noout", "-serial", given=said)


def reloaded(place):
    place.admin.create_topics("open-reloaded")
    place.clients.done("stream", connect=place.server.connect("RELOADED"), topic="open-reloaded", name="reloaded")
    before = serial_shown(place)
    time.sleep(1)
    place.certificates.make("reloaded")
    replaced = time.monotonic()
    while serial_shown(place) == before:
        assert time.monotonic() < replaced + 10, "the old certificate is shown 10 s later"
    time.sleep(1)
    for name, state in place.clients.done("stop", name="reloaded").items():
        assert not state["errors"] and state["acknowledged"] == state["sent"] > 50, f"{name}: {state}"
    # Half a pair does not harm: the old one stays in use.
    shown = serial_shown(place)
    good = place.certificates["reloaded"].read_bytes()
    place.certificates["reloaded"].write_bytes(good[:200])
    time.sleep(1)
    assert serial_shown(place) == shown, "another certificate is shown while the file is broken"
    place.certificates["reloaded"].write_bytes(good)
