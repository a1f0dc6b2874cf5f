"""Stored records to Arrow columns: what every reader of the pipeline shares. Nothing here asks a broker."""
