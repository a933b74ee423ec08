# SPDX-License-Identifier: Apache-2.0
"""The consumer's end of one edge of one request: subscribes, pulls items, and fills the stream's buffer."""


class ConsumerStream:
    """One edge of one attempt, opened by StreamPorts."""

    def consumed(self) -> None:
        """Tell the producers that the buffer's `next_index` has moved."""
        raise NotImplementedError
