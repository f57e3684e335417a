"""The package in a clean Debian: installed, upgraded, removed, purged and installed again, with records that must not be lost."""

import json
import shutil
import stat
import subprocess

from made import make, own_version, stripped_programs
from root import Root
from service import STATE, UNIT, Service, kcat, read

CONFIGURATION = "/etc/mainstem/mainstem.toml"
VARIABLES = "/etc/default/mainstem"
ENABLED = "/etc/systemd/system/multi-user.target.wants/mainstem.service"
TOPICS, RECORDS = ("orders", "payments", "events"), 5000
# A topic that is made when this many partitions are configured.
WIDE, PARTITIONS = "wide", 5
UNATTENDED = ("--force-confdef", "--force-confold")
# In the place of systemctl, for what the package's scripts ask of a running systemd. Presets are files, and the real one does them.
CALLS, REAL = "/var/log/systemctl.calls", "/usr/bin/systemctl.real"
SYSTEMCTL = f"""#!/bin/sh
echo "$*" >>{CALLS}
case $* in
    *is-enabled*) echo enabled ;;
    *preset*) exec {REAL} "$@" ;;
esac
"""


def cases(directory, made, packed, entered):
    """`made` is a run of packaging/dist, `packed` a clean root, and `entered` one where only the first case installs anything so far."""
    later = Later(directory)

    def clean(name):
        return Root(directory / name, packed)

    def installed():
        root = entered
        root.install(made.deb)
        assert root.status() == f"install ok installed {made.version}"
        user, group = root.ids()
        assert 100 <= user < 1000 and 100 <= group < 1000, (user, group)
        name, _, _, _, _, home, shell = root.run("getent", "passwd", "mainstem").stdout.strip().split(":")
        assert (name, home, shell) == ("mainstem", STATE, "/usr/sbin/nologin"), (name, home, shell)
        assert root.run("passwd", "--status", "mainstem").stdout.split()[1] == "L", "one can log in as mainstem"
        state = root.path(STATE).stat()
        assert (stat.S_IMODE(state.st_mode), state.st_uid, state.st_gid) == (0o700, user, group), state
        for path in ("/usr/bin/mainstem", UNIT, CONFIGURATION):
            found = root.path(path).stat()
            assert (found.st_uid, found.st_gid) == (0, 0) and not found.st_mode & 0o022, (path, found)
        assert root.run("mainstem", "version").stdout == f"mainstem {own_version()}\n"
        assert root.run("dpkg", "--verify", "mainstem").stdout == ""
        assert CONFIGURATION in root.run("dpkg-query", "--show", "--showformat=${Conffiles}", "mainstem").stdout
        assert root.path(ENABLED).is_symlink() and str(root.path(ENABLED).readlink()) in (UNIT, UNIT.removeprefix("/usr"))

    def life():
        root = clean("life")
        root.install(made.deb)
        with Service(root) as service:
            service.start()
            check_sandbox(service.status(), root.ids())
            kept = {topic: [f"{topic} {number} {'x' * (number % 300)}" for number in range(RECORDS)] for topic in TOPICS}
            for topic, records in kept.items():
                produce(service.address, topic, records)
            compare(service.address, kept)
            service.stop()

            edit(root.path(CONFIGURATION))
            service.start()
            # The new package comes while the old server works, and then it is restarted.
            root.install(later.package(), *UNATTENDED)
            assert root.status() == f"install ok installed {later.version}"
            compare(service.address, kept)
            service.stop()
            text = root.path(CONFIGURATION).read_text()
            assert f"num.partitions = {PARTITIONS}" in text and "# Of a later version." not in text, "the edited file was replaced"
            assert "# Of a later version." in root.path(f"{CONFIGURATION}.dpkg-dist").read_text()
            service.start()
            compare(service.address, kept)
            kept[WIDE] = [f"wide {number}" for number in range(RECORDS)]
            produce(service.address, WIDE, kept[WIDE])
            assert partitions(service.address, WIDE) == PARTITIONS, "the edited setting is not in force"
            service.stop()

            root.dpkg("--remove", "mainstem")
            assert root.status().startswith("deinstall ok config-files"), root.status()
            assert not root.path("/usr/bin/mainstem").exists() and not root.path(UNIT).exists()
            assert root.path(CONFIGURATION).read_text() == text and root.path(VARIABLES).exists()
            before = files_below(root.path(STATE))
            assert len(before) > 3, before

            root.path("/etc/mainstem/server.pem").write_text("a key\n")
            said = root.dpkg("--purge", "mainstem")
            assert f"the records in {STATE} are kept" in said, said
            assert not root.path("/etc/mainstem").exists() and not root.path(VARIABLES).exists() and not root.path(ENABLED).is_symlink()
            assert files_below(root.path(STATE)) == before, "the purge changed the data directory"

            root.install(later.package())
        with Service(root) as service:
            assert f"num.partitions = {PARTITIONS}" not in root.path(CONFIGURATION).read_text()
            service.start()
            compare(service.address, kept)
            service.stop()
        shutil.rmtree(root.directory)
        return f"{sum(map(len, kept.values()))} records compared 5 times; without systemd, in most of the unit's sandbox"

    def asked_of_systemd():
        root = clean("asked")
        systemctl, calls = root.path("/usr/bin/systemctl"), root.path(CALLS)
        systemctl.rename(root.path(REAL))
        systemctl.write_text(SYSTEMCTL)
        systemctl.chmod(0o755)
        root.path("/run/systemd/system").mkdir(parents=True)

        def asked(step):
            calls.write_text("")
            step()
            lines = (line.replace("--quiet", "").replace("--system", "").split() for line in calls.read_text().splitlines())
            return [" ".join(words) for words in lines if words[0] in ("daemon-reload", "start", "stop", "restart")]

        assert asked(lambda: root.install(made.deb)) == ["daemon-reload", "start mainstem.service"]
        # As an administrator disables it.
        root.path(ENABLED).unlink()
        assert asked(lambda: root.install(later.package())) == ["daemon-reload", "restart mainstem.service"]
        assert not root.path(ENABLED).is_symlink(), "an upgrade enabled the service again"
        assert asked(lambda: root.dpkg("--remove", "mainstem")) == ["stop mainstem.service", "daemon-reload"]
        assert asked(lambda: root.dpkg("--purge", "mainstem")) == []
        assert asked(lambda: root.install(made.deb)) == ["daemon-reload", "start mainstem.service"]
        assert root.path(ENABLED).is_symlink()
        # There are no records to keep here.
        said = root.dpkg("--purge", "mainstem")
        assert "are kept" not in said and not root.path(STATE).exists(), said
        left = [path for path in ("/etc", "/usr", "/var/lib") for path in root.path(path).rglob("*mainstem*") if "dpkg" not in str(path)]
        assert not left, left
        shutil.rmtree(root.directory)

    yield "Debian: installed, with its user, modes, unit and configuration", 90, installed
    yield "Debian: records through an upgrade, a removal, a purge and an installation", 240, life
    yield "Debian: what is asked of systemd; a purge where there are no records", 120, asked_of_systemd


class Later:
    """A later version, whose sample configuration has changed. It is made when it is first asked for."""

    def __init__(self, directory):
        self.directory, self.version = directory / "later", f"{own_version()}+later"

    def package(self):
        package = self.directory / "package.deb"
        if not package.exists():
            self.directory.mkdir()
            programs = stripped_programs(self.directory / "programs")
            made = make(self.directory / "made", "--programs", programs, version=self.version)
            tree = self.directory / "tree"
            subprocess.run(["dpkg-deb", "--raw-extract", made.deb, tree], check=True)
            with open(tree / CONFIGURATION[1:], "a") as configuration:
                configuration.write("# Of a later version.\n")
            subprocess.run(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", tree, package], check=True, capture_output=True)
        return package


def produce(address, topic, records):
    kcat(address, "-P", "-t", topic, "-X", "acks=all", records="\n".join(records) + "\n")


def compare(address, kept):
    """All records of all topics, each once, and in order where there is one partition."""
    for topic, records in kept.items():
        found = read(address, topic)
        if topic == WIDE:
            found, records = sorted(found), sorted(records)
        assert found == records, f"{topic}: {len(found)} records of {len(records)}, {len(set(records) - set(found))} missing"


def partitions(address, topic):
    (found,) = json.loads("\n".join(kcat(address, "-L", "-J", "-t", topic)))["topics"]
    return len(found["partitions"])


def edit(path):
    """As an administrator does."""
    text = path.read_text()
    assert text.count("# num.partitions = 1\n") == 1
    path.write_text(text.replace("# num.partitions = 1\n", f"num.partitions = {PARTITIONS}\n"))


def files_below(directory):
    found = {file: file.stat() for file in directory.rglob("*") if file.is_file()}
    return {str(file.relative_to(directory)): (of.st_size, of.st_mtime_ns, of.st_uid) for file, of in found.items()}


def check_sandbox(status, ids):
    """The sandbox is there: a user of its own, no capability to be had, a filter of system calls."""
    user, group = map(str, ids)
    assert status["Uid"] == [user] * 4 and status["Gid"] == [group] * 4 and status["Groups"] == [], status
    assert status["CapBnd"] == status["CapPrm"] == ["0" * 16] and status["NoNewPrivs"] == ["1"] and status["Seccomp"] == ["2"], status
