"""Message traces: `tracing` writes them, `story` reads them."""
