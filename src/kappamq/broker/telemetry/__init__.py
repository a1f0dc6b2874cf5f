"""Numbers about what the broker does: counters, rates, latencies. Changes nothing; read by `admin`."""
