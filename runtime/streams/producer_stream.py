# SPDX-License-Identifier: Apache-2.0
"""The producer's end of one edge of one run: keeps every item, and sends it to the worker that hosts its walk."""


class ProducerStream:
    """One edge of one run, opened by StreamPorts."""

    @property
    def is_full(self) -> bool:
        """Whether the consumer is so far behind that nothing may be emitted now."""
        raise NotImplementedError

    def emit(self, index: int, walk: str, array: object) -> None:
        """Keep an item, a numpy array, and send it as soon as its consumer takes it."""
        raise NotImplementedError

    def mark(self, index: int, walk: str) -> None:
        """Tell all consumers that items from `index` on are for `walk` or a later one."""
        raise NotImplementedError

    def finish(self, last_index: int) -> None:
        """Tell all consumers, also later ones, that there are no items from `last_index` on."""
        raise NotImplementedError
