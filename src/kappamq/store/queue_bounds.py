"""Changes to where queues begin and end, and what the kernel keeps in memory from the queue files."""

from __future__ import annotations

from kappamq.store.finding import Finding


class QueueBounds(Finding):
    """The part of a `MessageStore` that changes queues without appending to the log."""

    def restart_queue(self, topic: str, queue_id: int, offset: int) -> None:
        """Make a queue empty; its next message gets the number `offset`."""
        self.kernel.set_queue(topic, queue_id, offset, offset)

    def raise_minimum(self, topic: str, queue_id: int, offset: int) -> None:
        """Messages of the queue below `offset` are no longer in the log."""
        self.kernel.set_queue_min(topic, queue_id, offset)

    def minimums_are_raised(self) -> None:
        """Every queue now begins where the log still has its messages: the kernel need not compare each entry with the log's start."""
        self.kernel.mins_raised = True

    def entries_were_replaced(self, topic: str, queue_id: int) -> None:
        """Queue files were repaired: entries that were lent to the kernel may be the damaged ones."""
        self.kernel.lend_entries(topic, queue_id, 0, b"")

    def keep_hot(self, size: int) -> None:
        """Assume that the last `size` bytes of the log are in memory; pulls of older bytes are read by a worker first."""
        self.kernel.hot_from = max(self.kernel.hot_from, self.log.end - size)

    def suggest(self, broker_id: int, size: int) -> None:
        """Suggest this broker of the group for pulls of messages before the last `size` bytes of the log."""
        self.kernel.suggested = broker_id
        self.kernel.suggested_below = self.log.end - size
