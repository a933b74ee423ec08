# SPDX-License-Identifier: Apache-2.0
"""Values of which many are made for each token: dataclasses that mypy keeps frozen.

A dataclass that is also frozen at run time sets each field by a call of its own: one with six fields takes four times
as long to make.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as value
else:
    from dataclasses import dataclass

    def value(*, frozen: bool, slots: bool, eq: bool = True) -> Any:
        """Make a class a dataclass whose values compare and hash as frozen ones do."""
        return dataclass(slots=slots, eq=eq, unsafe_hash=frozen and eq)


__all__ = ["value"]
