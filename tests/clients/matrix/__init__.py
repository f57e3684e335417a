"""The matrix of clients: programs on many releases of many client libraries, and the cases that each goes through."""
