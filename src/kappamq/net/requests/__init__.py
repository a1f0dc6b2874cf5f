"""From a frame to a handler and its answer, for all servers: size limits, fairness, long work in a thread, loop monitoring."""
