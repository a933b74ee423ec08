# SPDX-License-Identifier: Apache-2.0
"""The recorded frames of messages about leases, as in recorded_frames.py."""

from pontil.runtime.wire.messages import LeaseOrder, LeaseState, LeasesTold, Message

LEASE_MESSAGES: dict[str, Message] = {
    "lease_order": LeaseOrder(
        sender="px", receiver="d4", lease_id="prefix-1", action="resume", seconds=3600, owner="ada",
        keys=bytes(range(16)), age=1.5, prompt=bytes(8), salt="s", adapter="0a",
        moves=3, adapter_directory="/a", adapter_start=5,
    ),
    "lease_state": LeaseState(
        sender="d4", receiver="px", lease_id="prefix-1", owner="ada", proxy="px", state="held", tokens=16,
        size=1 << 40, seconds=3600, age=1.5, reason="drains", keys=bytes(range(16)),
        prompt=bytes(8), salt="s", adapter="0a", moves=3, adapter_directory="/a", adapter_start=5,
    ),
    "leases_told": LeasesTold(sender="d4", receiver="px", lease_ids=["prefix-1"]),
}  # fmt: skip
LEASE_RECORDED = {
    "lease_order": (
        "8fa174ab6c656173655f6f72646572a673656e646572a27078a87265636569766572a26434a86c656173655f6964a8707265"
        "6669782d31a6616374696f6ea6726573756d65a77365636f6e6473cd0e10a56f776e6572a3616461a46b657973c410000102"
        "030405060708090a0b0c0d0e0fa3616765cb3ff8000000000000a670726f6d7074c4080000000000000000a473616c74a173"
        "a761646170746572a23061a56d6f76657303b1616461707465725f6469726563746f7279a22f61ad616461707465725f7374"
        "61727405"
    ),
    "lease_state": (
        "de0013a174ab6c656173655f7374617465a673656e646572a26434a87265636569766572a27078a86c656173655f6964a870"
        "72656669782d31a56f776e6572a3616461a570726f7879a27078a57374617465a468656c64a6746f6b656e7310a473697a65"
        "cf0000010000000000a77365636f6e6473cd0e10a3616765cb3ff8000000000000a6726561736f6ea6647261696e73a46b65"
        "7973c410000102030405060708090a0b0c0d0e0fa670726f6d7074c4080000000000000000a473616c74a173a76164617074"
        "6572a23061a56d6f76657303b1616461707465725f6469726563746f7279a22f61ad616461707465725f737461727405"
    ),
    "leases_told": (
        "84a174ab6c65617365735f746f6c64a673656e646572a26434a87265636569766572a27078a96c656173655f69647391a870"
        "72656669782d31"
    ),
}
LEASE_SHORTEST = {
    "lease_order": (
        "85a174ab6c656173655f6f72646572a673656e646572a27078a87265636569766572a26434a86c656173655f6964a8707265"
        "6669782d31a6616374696f6ea6726573756d65"
    ),
    "lease_state": (
        "8ba174ab6c656173655f7374617465a673656e646572a26434a87265636569766572a27078a86c656173655f6964a8707265"
        "6669782d31a56f776e6572a3616461a570726f7879a27078a57374617465a468656c64a6746f6b656e7310a473697a65cf00"
        "00010000000000a77365636f6e6473cd0e10a3616765cb3ff8000000000000"
    ),
}
