"""The compatibility suite's own modules. README.md, one folder up, says which holds what."""
