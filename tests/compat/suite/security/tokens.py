"""JSON web tokens made by openssl, and the file of keys (JWKS) that a server knows them by."""

import base64
import json
import subprocess
import time

ISSUER, AUDIENCE = "the issuer", "streams"
# Of one coordinate of a P-256 point, and of each half of its signatures.
EC_BYTES = 32


def encoded(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Tokens:
    """Keys `rsa` and `ec`, which are in the file, and `unknown`, which is not."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True)
        for name in ("rsa", "unknown"):
            self.openssl("genrsa", "-out", f"{name}.key", "2048")
        self.openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "ec.key")
        modulus = self.openssl("rsa", "-in", "rsa.key", "-noout", "-modulus").strip().partition(b"=")[2]
        point = self.openssl("ec", "-in", "ec.key", "-pubout", "-outform", "DER")[-2 * EC_BYTES:]
        keys = [
            {"kty": "RSA", "kid": "rsa", "use": "sig", "alg": "RS256", "e": encoded(b"\1\0\1"),
             "n": encoded(bytes.fromhex(modulus.decode()))},
            {"kty": "EC", "kid": "ec", "use": "sig", "alg": "ES256", "crv": "P-256",
             "x": encoded(point[:EC_BYTES]), "y": encoded(point[EC_BYTES:])},
        ]
        self.jwks = folder / "jwks.json"
        self.jwks.write_text(json.dumps({"keys": keys}))

    def openssl(self, *arguments, given=None):
        done = subprocess.run(["openssl", *arguments], cwd=self.folder, input=given, capture_output=True)
        assert done.returncode == 0, f"openssl {' '.join(arguments)}: {done.stderr.decode()}"
        return done.stdout

    def make(self, key="rsa", algorithm=None, user="alice", seconds=3600, kid=None, **changed):
        """A good token, but for what is `changed`: claims, or None to leave one out."""
        now = int(time.time())
        claims = {"sub": user, "iss": ISSUER, "aud": AUDIENCE, "iat": now + min(0, seconds - 60), "exp": now + seconds,
                  "scope": "produce consume", **changed}
        algorithm = algorithm or ("ES256" if key == "ec" else "RS256")
        head = {"alg": algorithm, "typ": "JWT", "kid": kid or key}
        if algorithm == "none":
            head.pop("kid")
        claims = {name: value for name, value in claims.items() if value is not None}
        text = ".".join(encoded(json.dumps(part).encode()) for part in (head, claims))
        return f"{text}.{encoded(self.signature(algorithm, key, text.encode()))}"

    def signature(self, algorithm, key, text):
        if algorithm == "none":
            return b""
        signed = self.openssl("dgst", "-sha256", "-sign", f"{key}.key", given=text)
        if algorithm == "RS256":
            return signed
        # openssl writes a sequence of two integers, a token holds the two as they are.
        parts, at = b"", 2
        for _ in range(2):
            length = signed[at + 1]
            parts += signed[at + 2:at + 2 + length].lstrip(b"\0").rjust(EC_BYTES, b"\0")
            at += 2 + length
        return parts
