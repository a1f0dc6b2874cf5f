"""From bytes to the handler of a request code.

`table` declares every request: header, size, rights, what it does. `bursts` receives what a socket read brought, lets the kernel serve
what it can, decodes the headers of the rest and calls their handlers, which get a `Request` and no frame. `unsupported` declares what
this version refuses. Touches the kernel and connections, and the log
through `sending.log_writer`. Called by `net`; every other room is called from here.
"""
