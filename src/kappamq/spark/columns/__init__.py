"""From stored records to Arrow columns, shared by all readers of the pipeline. Sends no requests to brokers."""
