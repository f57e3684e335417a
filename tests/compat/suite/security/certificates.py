"""Certificates made by openssl: an authority, what it signed, and another authority that signed nothing of ours."""

import subprocess

# A request made now is signed for a time that is over.
LONG_AGO = ("20200101000000Z", "20200201000000Z")
SIGNER = """[ca]
default_ca = own
[own]
database = index.txt
new_certs_dir = .
rand_serial = yes
default_md = sha256
policy = any
unique_subject = no
[any]
organizationName = optional
commonName = supplied
"""
ROOTS = ("authority", "stranger")
LOCAL = "DNS:localhost,IP:127.0.0.1"


class Certificates:
    """`NAME.pem` is a key with its certificate; `authority.pem` and `stranger.pem` are certificates alone."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True)
        (folder / "index.txt").touch()
        (folder / "ca.cnf").write_text(SIGNER)
        for name in ROOTS:
            self.request(name, f"/CN={name}", "-x509", "-days", "2", "-out", f"{name}.pem")

    def __getitem__(self, name):
        return self.folder / f"{name}.pem"

    def openssl(self, *arguments, given=None):
        done = subprocess.run(["openssl", *map(str, arguments)], cwd=self.folder, input=given, capture_output=True,
                              text=True)
        assert done.returncode == 0, f"openssl {' '.join(map(str, arguments))}: {done.stderr}"
        return done.stdout

    def request(self, name, subject, *more):
        self.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
                     f"{name}.key", "-subj", subject, *more)

    def make(self, name, alternatives=LOCAL, subject=None, authority="authority", expired=False, signs=False):
        """A key and its certificate in `NAME.pem`."""
        self.request(name, subject or f"/CN={name}", "-out", f"{name}.csr")
        self.sign(name, alternatives, authority, expired, signs)

    def certify(self, name):
        """The same for the key that is there in `NAME.key`."""
        self.openssl("req", "-new", "-key", f"{name}.key", "-subj", f"/CN={name}", "-out", f"{name}.csr")
        self.sign(name)

    def sign(self, name, alternatives=LOCAL, authority="authority", expired=False, signs=False):
        """Writes `NAME.pem`, with the authorities between, at once, so that no reader finds half of it. One that `signs`
        is an authority between."""
        (self.folder / f"{name}.ext").write_text(f"subjectAltName={alternatives}\nbasicConstraints=CA:{'TRUE' if signs else 'FALSE'}\n")
        times = ["-startdate", LONG_AGO[0], "-enddate", LONG_AGO[1]] if expired else ["-days", "2"]
        self.openssl("ca", "-batch", "-config", "ca.cnf", "-notext", "-in", f"{name}.csr", "-cert", f"{authority}.pem",
                     "-keyfile", f"{authority}.key", "-extfile", f"{name}.ext", "-out", f"{name}.crt", *times)
        files = [f"{name}.key", f"{name}.crt"] + ([f"{authority}.crt"] if authority not in ROOTS else [])
        (self.folder / f"{name}.new").write_text("".join((self.folder / file).read_text() for file in files))
        (self.folder / f"{name}.new").rename(self[name])
        return self[name]
