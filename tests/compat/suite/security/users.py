"""Who may log in, and how."""

# All users have one password, with what has to be quoted somewhere.
PASSWORD = 'a"secret, \\ and more'
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = ("PLAIN", *SCRAM, "OAUTHBEARER")
USERS = ("alice", "bob", "carol", "dave", "erin", "admin")
