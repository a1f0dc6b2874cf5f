"""The wire and record formats: frames, headers, records, bodies. No I/O and no clock: all functions are pure."""
