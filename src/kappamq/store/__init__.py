"""The log and what is derived from it. Synchronous, and the time is an argument; the broker decides on which thread a call runs."""
