"""From bytes to the handler of a request code.

`bursts` receives what a socket read brought, lets the kernel serve what it can, and routes the rest; `sizes` says how large each
request may be; `unsupported` refuses what this version does not do. Touches the kernel, the log's marks and connections. Called by
`net`; every other room is called from here.
"""
