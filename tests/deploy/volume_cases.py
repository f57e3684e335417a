"""Volumes as Kubernetes hands them to a pod: modes and groups, which root can make."""

import os

from rendered import Chart
from suite import place

# A volume of a class that applies fsGroup, one of a class that does not, and an emptyDir with fsGroup.
MODES = {"a volume of a group": (0o2775, True), "a volume for everybody": (0o777, False), "an emptyDir of a group": (0o2777, True)}


class Mounted:
    """A pod with its volume, and the words that make a command the pod's user."""

    def __init__(self, site, mode, given):
        chart = Chart()
        context = chart.one("StatefulSet")["spec"]["template"]["spec"]["securityContext"]
        self.user, self.group = context["runAsUser"], context["fsGroup"]
        pod = site.pod(chart, "default", "volume")
        pod.write_files()
        self.root = pod.translation.path("/var/lib/mainstem")
        os.chown(self.root, 0, self.group if given else 0)
        self.root.chmod(mode)
        # The folder of the tests is root's alone.
        for parent in (pod.directory, *pod.directory.parents):
            if parent == place.ROOT:
                break
            parent.chmod(parent.stat().st_mode | 0o111)
        self.server = pod.process()
        self.prefix = ["setpriv", f"--reuid={self.user}", f"--regid={context['runAsGroup']}", f"--groups={self.group}",
                       "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]


def cases(site):
    def volume(mode, given):
        def case():
            mounted = Mounted(site, mode, given)
            try:
                for _ in range(2):
                    mounted.server.start(mounted.prefix)
                    assert mounted.server.is_healthy()
                    mounted.server.stop()
                found = (mounted.root / "data").stat()
                assert found.st_uid == mounted.user and found.st_mode & 0o777 == 0o700, found
            finally:
                mounted.server.end()
        return case

    def opened():
        """What fsGroupChangePolicy Always does to the data directory at each start of a pod."""
        mounted = Mounted(site, 0o2775, True)
        data = mounted.root / "data"
        data.mkdir()
        os.chown(data, mounted.user, mounted.group)
        data.chmod(0o2770)
        try:
            mounted.server.start(mounted.prefix)
            assert mounted.server.is_healthy()
            mounted.server.stop()
        finally:
            mounted.server.end()

    for name, (mode, given) in MODES.items():
        yield f"chart: {name}", 60, volume(mode, given)
    yield "chart: a data directory that was given to the group is taken", 60, opened
