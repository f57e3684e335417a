"""Certificates for tests, made by openssl."""

import subprocess


class Certificates:
    """An authority, certificates by it, and another authority that signed nothing."""

    def __init__(self, folder):
        self.folder = folder
        names = ("authority", "stranger", "server", "other", "client")
        self.authority, self.stranger, self.server, self.other, self.client = (folder / f"{name}.pem" for name in names)

    def make_all(self):
        self.folder.mkdir()
        self.make_authority("authority")
        self.make_authority("stranger")
        self.make("server", "DNS:localhost,IP:127.0.0.1")
        self.make("other", "DNS:elsewhere.example")
        self.make("client", "DNS:client.example")

    def openssl(self, *arguments):
        done = subprocess.run(["openssl", *arguments], cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, f"openssl {' '.join(arguments)}: {done.stderr}"

    def request(self, name, *more):
        self.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
                     f"{name}.key", "-subj", f"/CN={name}", *more)

    def make_authority(self, name):
        self.request(name, "-x509", "-days", "2", "-out", f"{name}.pem")

    def make(self, name, alternatives):
        self.request(name, "-out", f"{name}.csr")
        (self.folder / f"{name}.ext").write_text(f"subjectAltName={alternatives}\nbasicConstraints=CA:FALSE\n")
        self.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "authority.pem", "-CAkey", "authority.key",
                     "-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.crt")
        both = (self.folder / f"{name}.key").read_text() + (self.folder / f"{name}.crt").read_text()
        (self.folder / f"{name}.pem").write_text(both)
