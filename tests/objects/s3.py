"""Requests to an S3 store and their signatures (Signature Version 4), as far as the tests need them."""

import datetime
import hashlib
import hmac
import http.client
import urllib.parse
import xml.etree.ElementTree
from typing import NamedTuple

REGION = "us-east-1"
ANSWER_SECONDS = 20


class Credentials(NamedTuple):
    user: str
    password: str


def authorization(credentials, method, target, headers, names):
    """The header of this name. `names`, in order, are those of the headers that it covers."""
    path, _, query = target.partition("?")
    parts = sorted(part if "=" in part else part + "=" for part in query.split("&") if part)
    lines = [f"{name}:{headers[name].strip()}" for name in names]
    covered = ";".join(names)
    request = "\n".join([method, path, "&".join(parts), *lines, "", covered, headers["x-amz-content-sha256"]])
    moment = headers["x-amz-date"]
    scope = [moment[:8], REGION, "s3", "aws4_request"]
    text = "\n".join(["AWS4-HMAC-SHA256", moment, "/".join(scope), hashlib.sha256(request.encode()).hexdigest()])
    key = b"AWS4" + credentials.password.encode()
    for part in [*scope, text]:
        key = hmac.digest(key, part.encode(), "sha256")
    return (f"AWS4-HMAC-SHA256 Credential={credentials.user}/{'/'.join(scope)}, "
            f"SignedHeaders={covered}, Signature={key.hex()}")


class S3:
    """A store at HOST:PORT."""

    def __init__(self, address, credentials):
        self.address, self.credentials = address, credentials

    def ask(self, method, path, query=(), body=b"", **more):
        """(status, body)"""
        target = path + ("?" + urllib.parse.urlencode(sorted(query), quote_via=urllib.parse.quote) if query else "")
        now = datetime.datetime.now(datetime.timezone.utc)
        headers = {
            "host": self.address, "x-amz-date": now.strftime("%Y%m%dT%H%M%SZ"),
            "x-amz-content-sha256": hashlib.sha256(body).hexdigest(),
            **{name.replace("_", "-"): value for name, value in more.items()},
        }
        headers["authorization"] = authorization(self.credentials, method, target, headers, sorted(headers))
        connection = http.client.HTTPConnection(self.address, timeout=ANSWER_SECONDS)
        try:
            connection.request(method, target, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def must(self, *arguments, **more):
        status, body = self.ask(*arguments, **more)
        assert status in (200, 204), f"{arguments[:2]}: {status} {body[:300]!r}"
        return body

    def make_bucket(self, bucket):
        self.must("PUT", f"/{bucket}")

    def remove_bucket(self, bucket):
        """With everything in it, which MinIO does if it is told to."""
        self.must("DELETE", f"/{bucket}", x_minio_force_delete="true")

    def keys(self, bucket, prefix=""):
        """The keys of all objects, in order, each with its bytes."""
        found, token = {}, None
        while True:
            query = [("list-type", "2"), ("prefix", prefix)] + ([("continuation-token", token)] if token else [])
            root = xml.etree.ElementTree.fromstring(self.must("GET", f"/{bucket}", query))
            for listed in root.findall("{*}Contents"):
                found[listed.findtext("{*}Key")] = int(listed.findtext("{*}Size"))
            token = root.findtext("{*}NextContinuationToken")
            if not token:
                return found
