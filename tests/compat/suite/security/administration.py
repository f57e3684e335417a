"""What an administrator does through the listener that only this machine reaches, where everybody is a super user."""

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

SECONDS = 10
ITERATIONS = 4096
KINDS = {"topic": ResourceType.TOPIC, "group": ResourceType.GROUP, "transaction": ResourceType.TRANSACTIONAL_ID,
         "cluster": ResourceType.BROKER}


class Administration:
    def __init__(self, bootstrap):
        self.client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def create_topics(self, *names):
        settle(self.client.create_topics([NewTopic(name, 1, 1) for name in names], request_timeout=SECONDS))

    def set_passwords(self, mechanism, passwords):
        """{user: password}. Kafka takes a user once in a request, whatever the mechanism."""
        settle(self.client.alter_user_scram_credentials([
            UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism_of(mechanism), ITERATIONS),
                                         password.encode())
            for user, password in passwords.items()]))

    def forget(self, user, *mechanisms):
        settle(self.client.alter_user_scram_credentials(
            [UserScramCredentialDeletion(user, mechanism_of(mechanism)) for mechanism in mechanisms]))

    def grant(self, principal, *rights, allow=True, host="*"):
        """Each right is (kind, name, operation); a name that ends in * is a prefix."""
        settle(self.client.create_acls([binding(AclBinding, principal, right, allow, host) for right in rights]))

    def take(self, principal, *rights, allow=True, host="*"):
        settle(self.client.delete_acls([binding(AclBindingFilter, principal, right, allow, host) for right in rights]))


def binding(of, principal, right, allow, host):
    kind, name, operation = right
    prefixed = len(name) > 1 and name.endswith("*")
    pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    permission = AclPermissionType.ALLOW if allow else AclPermissionType.DENY
    return of(KINDS[kind], name.removesuffix("*") if prefixed else name, pattern, principal, host,
              AclOperation[operation], permission)


def mechanism_of(name):
    return ScramMechanism[name.replace("-", "_")]


def settle(futures):
    for future in futures.values():
        future.result(SECONDS)
