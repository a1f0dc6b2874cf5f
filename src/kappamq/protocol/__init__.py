"""What bytes mean: frames, headers, records, bodies. No I/O, no clock; everything here is a function of its input."""
