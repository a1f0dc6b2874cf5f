"""The fields of every request and response, each declared once; codec, round-trip tests and fuzzing derive from it."""
