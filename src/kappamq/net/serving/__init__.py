"""The accepting side: listening, TLS, the first bytes of a connection, connection limits, closing."""
