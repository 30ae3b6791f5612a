"""How often Python looks for garbage that reference counts do not find.

A correlator holds millions of objects that live for minutes and hardly any cycles. By default Python walks all of them
whenever their number has grown by a quarter, which costs a tenth of a core at 2,250 hosts and stops everything for half a
second. The young generations are walked as usual; all of it every `FULL_EVERY` of those.
"""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 50_000  # created more than freed, between two looks at the youngest
MIDDLE_EVERY = 20
FULL_EVERY = 200


def settle() -> None:
    gc.set_threshold(YOUNG_OBJECTS, MIDDLE_EVERY, FULL_EVERY)
