"""The accepting side: listening, TLS or plain, the first bytes of a connection, its limits, its end."""
