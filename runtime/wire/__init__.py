# SPDX-License-Identifier: Apache-2.0
"""Messages, their codec and their sockets: the only place that imports zmq or msgpack."""
