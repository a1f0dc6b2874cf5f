"""A name server in this process and brokers in processes of their own, supervised: `kappamq up --brokers`, `--slaves`, `--raft`."""
