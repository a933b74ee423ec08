# SPDX-License-Identifier: Apache-2.0
"""Where a request's time went: spans and events of the proxy and of the workers, of each request within bounds."""
