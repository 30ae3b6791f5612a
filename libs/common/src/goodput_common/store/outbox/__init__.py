"""The outbox: a message is stored with the state that it announces, in one transaction, and published afterwards.

Publishing inside a transaction would lose or invent messages at every crash. So `enqueue` only inserts a row, and
`OutboxPublisher` sends rows and marks them. A crash in between sends a row again under the same message id, which the bus
drops within its duplicate window and the consumers' inboxes drop for good.
"""

from goodput_common.store.outbox.publisher import OutboxPublisher
from goodput_common.store.outbox.table import Undecodable, enqueue, outbox_table

__all__ = ["OutboxPublisher", "Undecodable", "enqueue", "outbox_table"]
