"""The log and what is derived from it. Synchronous: the broker passes the time and decides on which thread a call runs."""
