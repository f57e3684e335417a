"""The unit of systemd, as far as the tests do by it what systemd would do."""

import re
import shlex


class Unit:
    def __init__(self, text):
        self.settings = {}
        for line in text.splitlines():
            key, equals, value = line.partition("=")
            if equals and not line.startswith(("#", ";")):
                self.settings.setdefault(key.strip(), []).append(value.strip())

    def value(self, key):
        """Of a setting that is there once."""
        (value,) = self.settings[key]
        return value

    def command(self):
        return shlex.split(self.value("ExecStart"))

    def environment_file(self):
        """Its path. It need not exist."""
        value = self.value("EnvironmentFile")
        assert value.startswith("-"), value
        return value[1:]

    def system_calls(self, groups):
        """The names of those that the unit allows. `groups` is what `systemd-analyze syscall-filter` prints: it knows what an @ stands
        for."""
        members = parse_groups(groups)

        def expand(names):
            for name in names:
                if name.startswith("@"):
                    yield from expand(members[name])
                else:
                    yield name

        # A list that begins without ~ allows what it names, and @default; later ones with ~ take some away (systemd.exec(5)).
        first, *others = self.settings["SystemCallFilter"]
        assert not first.startswith("~"), first
        allowed = set(expand(["@default", *first.split()]))
        for line in others:
            if line.startswith("~"):
                allowed -= set(expand(line[1:].split()))
            else:
                allowed |= set(expand(line.split()))
        return allowed


def parse_groups(text):
    members, group = {}, None
    for line in text.splitlines():
        if re.match(r"@[\w-]+$", line):
            group = members.setdefault(line, [])
        elif not line.startswith(" "):
            group = None
        elif group is not None and not line.strip().startswith("#"):
            group.append(line.strip())
    return members


def parse_environment(text):
    """The variables of an EnvironmentFile, without systemd's escapes."""
    lines = (line.strip() for line in text.splitlines())
    return dict(line.split("=", 1) for line in lines if line and not line.startswith(("#", ";")))
