"""Copies between our brokers and Apache's: what the classic protocol lacks, and what is asked besides. Used by `broker.copies` only."""
