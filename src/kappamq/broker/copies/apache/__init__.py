"""Copies between our brokers and Apache's: the classic protocol, and the additional requests it needs. Used by `broker.copies` only."""
