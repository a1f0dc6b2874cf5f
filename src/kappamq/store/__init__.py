"""The log and what is derived from it. Synchronous, told the time; the broker decides on which thread a call runs."""
