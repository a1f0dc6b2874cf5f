"""A name server in this process and supervised brokers in separate processes: `kappamq up --brokers`, `--slaves`, `--raft`."""
