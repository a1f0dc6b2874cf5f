"""`kappamq shop`, which `make run` calls: a small shop on a broker of its own that checks its own books."""
