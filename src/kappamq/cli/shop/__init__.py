"""`kappamq shop`, run by `make run`: a small demo shop on its own broker that verifies its own books."""
