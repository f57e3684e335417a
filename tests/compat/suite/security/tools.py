"""Kafka's tools for rights and users, as an administrator types them: kafka-acls and kafka-configs."""

import subprocess

from suite import place
from suite.kafka import fetch_jars

CLASSES = {"kafka-acls": "org.apache.kafka.tools.AclCommand", "kafka-configs": "kafka.admin.ConfigCommand"}


class Tools:
    def __init__(self, bootstrap, properties):
        """`properties` is the file for --command-config."""
        self.bootstrap, self.properties = bootstrap, properties

    def run(self, tool, *arguments):
        # kafka-configs is among the server's jars and nowhere else.
        jars = f"{place.CACHE}/java/tools" if tool == "kafka-acls" else fetch_jars()
        command = [*place.JVM, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-Dlog4j2.level=OFF", "-cp",
                   f"{jars}/*", CLASSES[tool], "--bootstrap-server", self.bootstrap, "--command-config",
                   self.properties, *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 0, f"{tool} {' '.join(arguments)}: {done.returncode}: {done.stdout}{done.stderr}"[-800:]
        return done.stdout

    def acls(self, *arguments):
        return self.run("kafka-acls", *arguments)

    def configs(self, *arguments):
        return self.run("kafka-configs", *arguments)
