# SPDX-License-Identifier: Apache-2.0
"""The sanic app: connections, protocol, errors and the lifecycle of the proxy process."""
