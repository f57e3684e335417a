"""The archives and packages as files: the same bytes each time, and what is in them."""

import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
import zlib

from made import commit_time, copy_of_sources, make, own_version, programs
from suite import place

PROGRAMS = ("mainstem", "mainstem-bench")
# In a package, beside the manual pages and docs/*.md.
FILES = {
    "/usr/bin/mainstem", "/usr/bin/mainstem-bench", "/usr/lib/systemd/system/mainstem.service", "/etc/mainstem/mainstem.toml",
    "/usr/share/bash-completion/completions/mainstem", "/usr/share/zsh/vendor-completions/_mainstem",
    "/usr/share/fish/vendor_completions.d/mainstem.fish", "/usr/share/doc/mainstem/README.md", "/usr/share/doc/mainstem/changelog.gz",
    "/usr/share/doc/mainstem/changelog.Debian.gz", "/usr/share/doc/mainstem/copyright", "/usr/share/man/man1/mainstem.1.gz",
}
TREE_FILES = {
    "bin/mainstem", "bin/mainstem-bench", "etc/mainstem.toml", "systemd/mainstem.service", "share/man/man1/mainstem.1",
    "share/bash-completion/completions/mainstem", "share/zsh/site-functions/_mainstem", "share/fish/vendor_completions.d/mainstem.fish",
    "LICENSE", "CHANGELOG.md", "README.md",
}
MODES = {0o755, 0o644}


def cases(directory, made):
    """`made` is the first run of packaging/dist."""

    def same_bytes():
        """Whoever runs it, and wherever: the sums are those of all bytes."""
        script = copy_of_sources(directory / "elsewhere")
        elsewhere = directory / "elsewhere" / "folder" / "of another name"
        other = make(elsewhere, "--programs", programs(), script=script, cwd="/", umask=0o077, variables={
            "SOURCE_DATE_EPOCH": commit_time(), "TZ": "Asia/Kathmandu", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "HOME": "/nowhere",
            "DPKG_DEB_THREADS_MAX": "1", "MAINSTEM_LISTEN": "127.0.0.1:1", "COLUMNS": "40",
        })
        assert other.sums == made.sums, f"\n{made.sums}\n{other.sums}"
        megabytes = sum(file.stat().st_size for file in made.directory.iterdir()) / 1e6
        shutil.rmtree(directory / "elsewhere")
        return f"{megabytes:.0f} MB"

    def ordered():
        """One file system hands out names in one order, so that equal bytes do not show that they are sorted."""
        for file in (made.archive, made.debug_archive, made.deb, made.debug_deb):
            members = read_tar(file)
            names = [tuple(member.name.split("/")) for member in members]
            # dpkg-deb has links behind everything else.
            names = [name for name, member in zip(names, members, strict=True) if not member.issym()]
            assert names == sorted(names), f"{file.name} is not sorted"
            epoch = int(commit_time())
            for member in members:
                assert (member.uid, member.gid, member.mtime) == (0, 0, epoch), f"{file.name}: {member.get_info()}"
                assert member.issym() or member.mode in MODES, f"{file.name}: {member.name} has mode {member.mode:o}"
        # The time of gzip's header, and its flag of a name.
        for file in (made.archive, made.debug_archive):
            assert file.read_bytes()[3:8] == bytes(5), file.name

    def unpacked():
        tree = directory / "unpacked" / made.name
        unpack(made.archive, directory / "unpacked")
        found = {str(file.relative_to(tree)) for file in tree.rglob("*") if file.is_file()}
        others = {name for name in found - TREE_FILES if not re.fullmatch(r"share/man/man1/mainstem-[\w-]+\.1|docs/[\w-]+\.md", name)}
        assert TREE_FILES <= found and not others, (TREE_FILES - found, others)
        assert say(tree / "bin/mainstem", "version") == f"mainstem {own_version()}\n"
        assert "mainstem-bench" in say(tree / "bin/mainstem-bench", "--help")
        assert (tree / "share/man/man1/mainstem.1").read_text().count(".TH ") == 1
        say("bash", "-c", f". '{tree}/share/bash-completion/completions/mainstem' && complete -p mainstem")
        for program in PROGRAMS:
            sections = say("readelf", "--sections", "--wide", tree / "bin" / program)
            assert ".symtab" not in sections and ".debug_info" not in sections and ".debug_line" not in sections, sections
        return f"{made.archive.stat().st_size / 1e6:.0f} MB"

    def profile():
        """A compiler of another version might not read it, and does no more than warn."""
        file = place.ROOT / "packaging" / "mainstem.profdata"
        source = directory / "empty.rs"
        source.write_text("pub fn nothing() {}\n")
        other = directory / "other.profdata"
        other.write_bytes(bytes(8) + file.read_bytes()[8:])
        for used, readable in ((file, True), (other, False)):
            command = ("rustc", f"-Cprofile-use={used}", "--crate-type", "lib", "--out-dir", directory, source)
            done = subprocess.run(command, text=True, capture_output=True, check=True)
            assert ("warning" not in done.stderr) == readable, done.stderr
        return f"{file.stat().st_size / 1e6:.1f} MB"

    def configuration():
        """The sample as it is, and with each setting that it names."""
        sample = place.ROOT / "packaging" / "mainstem.toml"
        assert say(place.MAINSTEM, "config", "--check", sample) == "the file can be used\n"
        text, settings = re.subn(r"^# ([\w.]+ = )", r"\1", sample.read_text(), flags=re.MULTILINE)
        assert settings > 5, settings
        # Two examples of the same setting.
        lines = dict.fromkeys(line.partition(" = ")[0] for line in text.splitlines() if re.match(r"[\w.]+ = ", line))
        last = {name: [line for line in text.splitlines() if line.startswith(f"{name} = ")][-1] for name in lines}
        every = directory / "every.toml"
        every.write_text("\n".join(last.values()) + "\n")
        assert say(place.MAINSTEM, "config", "--check", every) == "the file can be used\n"
        return f"{len(last)} settings"

    def symbols():
        """Where the second archive is unpacked over the first, tools find lines of the source."""
        tree = directory / "symbols" / made.name
        unpack(made.archive, directory / "symbols")
        place_of_main = address_of_main()
        without = say("addr2line", "--functions", "--exe", tree / "bin/mainstem", place_of_main)
        assert "mainstem" not in without, without
        unpack(made.debug_archive, directory / "symbols")
        for program in PROGRAMS:
            check_link(tree / "bin" / program, tree / "bin/.debug" / f"{program}.debug")
        found = say("addr2line", "--functions", "--demangle", "--exe", tree / "bin/mainstem", place_of_main)
        assert re.search(r"mainstem::main\n.*crates/server/src/main\.rs:\d+", found), found
        shutil.rmtree(directory / "symbols")
        return found.split("/")[-1].strip()

    def package():
        fields = fields_of(made.deb)
        assert (fields["Package"], fields["Version"], fields["Architecture"]) == ("mainstem", made.version, "amd64"), fields
        depends = {name.split()[0] for name in fields["Depends"].split(", ")}
        assert depends == {"adduser", "libc6", "libgcc-s1", "libssl3", "zlib1g"}, fields["Depends"]
        assert re.search(r"libc6 \(>= 2\.\d+\)", fields["Depends"]), fields["Depends"]
        control = control_of(made.deb)
        assert control["conffiles"] == b"/etc/mainstem/mainstem.toml\n"
        for script in ("postinst", "prerm", "postrm"):
            subprocess.run(["sh", "-n"], input=control[script], check=True)
        contents = contents_of(made.deb)
        others = {name for name in contents.keys() - FILES
                  if not re.fullmatch(r"/usr/share/(man/man1/mainstem-[\w-]+\.1\.gz|doc/mainstem/docs/[\w-]+\.md)", name)}
        assert FILES <= contents.keys() and not others, (FILES - contents.keys(), others)
        sums = dict(reversed(line.split("  ")) for line in control["md5sums"].decode().splitlines())
        assert sums == {name[1:]: hashlib.md5(data).hexdigest() for name, data in contents.items() if not name.startswith("/etc/")}
        kibibytes = sum(-(-len(data) // 1024) for data in contents.values())
        assert kibibytes < int(fields["Installed-Size"]) < kibibytes + 100, fields["Installed-Size"]
        changes = gzip.decompress(contents["/usr/share/doc/mainstem/changelog.Debian.gz"]).decode()
        assert changes.startswith(f"mainstem ({made.version}) "), changes
        assert gzip.decompress(contents["/usr/share/man/man1/mainstem.1.gz"]).count(b".TH ") == 1
        for name, data in contents.items():
            assert not name.endswith(".gz") or data[3:8] == bytes(5), f"{name} has a time or a name"
        return f"{made.deb.stat().st_size / 1e6:.0f} MB"

    def symbols_package():
        """gdb finds the symbols by the build id, below /usr/lib/debug."""
        fields = fields_of(made.debug_deb)
        assert fields["Depends"] == f"mainstem (= {made.version})" and fields["Section"] == "debug", fields
        contents, tree = contents_of(made.debug_deb), directory / "dbgsym"
        unpack(made.archive, tree)
        expected = {}
        for program in PROGRAMS:
            build_id = build_id_of(tree / made.name / "bin" / program)
            assert build_id in fields["Build-Ids"].split(), fields
            expected[f"/usr/lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}.debug"] = program
        assert contents.keys() == expected.keys(), contents.keys()
        for name, program in expected.items():
            (tree / "debug").write_bytes(contents[name])
            check_link(tree / made.name / "bin" / program, tree / "debug")
        shutil.rmtree(tree)
        return f"{made.debug_deb.stat().st_size / 1e6:.0f} MB"

    yield "files: the same bytes under another umask, time zone, language and folder", 180, same_bytes
    yield "files: sorted, of root, of the last commit's time", 60, ordered
    yield "archive: what is in it, programs that run", 60, unpacked
    yield "archive: symbols apart, found by the link", 60, symbols
    yield "profile: the compiler takes it", 60, profile
    yield "configuration: the sample can be used, and all that it names", 30, configuration
    yield "package: fields, files, checksums, scripts", 60, package
    yield "package: symbols by build id", 60, symbols_package


def say(*command):
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stderr[-1000:]}"
    return done.stdout


def unpack(file, into):
    into.mkdir(exist_ok=True)
    subprocess.run(["tar", "-xzf", file, "-C", into], check=True)


def read_tar(file):
    """The members of an archive, or of the files in a package."""
    if file.suffix == ".deb":
        # A package's names begin with ./, which is its first member.
        with tarfile.open(fileobj=io.BytesIO(files_of(file))) as tar:
            return tar.getmembers()
    with tarfile.open(file) as tar:
        return tar.getmembers()


def files_of(deb):
    return subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], check=True, capture_output=True).stdout


def contents_of(deb):
    """The bytes of each file, by its path."""
    with tarfile.open(fileobj=io.BytesIO(files_of(deb))) as tar:
        return {member.name.removeprefix("."): tar.extractfile(member).read() for member in tar if member.isfile()}


def control_of(deb):
    packed = subprocess.run(["dpkg-deb", "--ctrl-tarfile", deb], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        for member in tar:
            wanted = 0o755 if os.path.basename(member.name) in ("postinst", "prerm", "postrm", ".", "") else 0o644
            assert (member.uid, member.gid, member.mode) == (0, 0, wanted), member.get_info()
        return {member.name.removeprefix("./"): tar.extractfile(member).read() for member in tar if member.isfile()}


def fields_of(deb):
    """The fields of a package that take one line."""
    return dict(line.split(": ", 1) for line in say("dpkg-deb", "--field", deb).splitlines() if not line.startswith(" "))


def build_id_of(program):
    return re.search(r"Build ID: ([0-9a-f]{40})", say("readelf", "--notes", program))[1]


def check_link(program, debug):
    """The program names the file with its symbols, by its build id and by its checksum."""
    assert build_id_of(program) == build_id_of(debug)
    links = say("readelf", "--debug-dump=links,no-follow-links", program)
    name, checksum = re.search(r"Separate debug info file: (\S+)\s+CRC value: 0x([0-9a-f]+)", links).groups()
    assert name == f"{program.name}.debug" and int(checksum, 16) == zlib.crc32(debug.read_bytes()), links


def address_of_main():
    """Of the function `main` in crates/server/src/main.rs, by the symbols of the program that was given."""
    symbols = say("nm", "--demangle", "--defined-only", programs() / "mainstem")
    return re.search(r"^([0-9a-f]+) t mainstem::main$", symbols, re.MULTILINE)[1]
