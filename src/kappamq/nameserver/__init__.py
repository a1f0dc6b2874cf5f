"""The name server: which broker has which topic, and where to reach it."""
