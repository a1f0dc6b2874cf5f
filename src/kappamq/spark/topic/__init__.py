"""The format `kappamq`: topics read through the brokers that hold them, as a batch or a stream."""
