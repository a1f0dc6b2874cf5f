"""The JSON bodies of requests and responses, each declared once."""
