"""The ledger of symmetries of an architecture, and the second route that checks it."""

from fiberscope.checkpoints.ledger.conditions import Condition
from fiberscope.checkpoints.ledger.item import Item, Overlap
from fiberscope.checkpoints.ledger.ledger import Ledger, Mechanism, ledger

__all__ = ["Condition", "Item", "Ledger", "Mechanism", "Overlap", "ledger"]
