# SPDX-License-Identifier: Apache-2.0
"""The recorded frame of the message about times, as in recorded_frames.py."""

from pontil.runtime.wire.messages import AttemptTimes, Message

TIMES_MESSAGES: dict[str, Message] = {
    "attempt_times": AttemptTimes(
        sender="d4", receiver="px", request_id="r", attempt=1, age=2.0, scheduled=0.0, chunks=[0.0, 0.5, 256],
        pulls=[0.5, 1.0, 16, 1 << 40], handoff=[0.5, 1.5], preempted=[1.0], first_token=0.5, last_token=2.0,
    ),
}  # fmt: skip
TIMES_RECORDED = {
    "attempt_times": (
        "8da174ad617474656d70745f74696d6573a673656e646572a26434a87265636569766572a27078aa726571756573745f6964"
        "a172a7617474656d707401a3616765cb4000000000000000a97363686564756c6564cb0000000000000000a66368756e6b73"
        "93cb0000000000000000cb3fe0000000000000cd0100a570756c6c7394cb3fe0000000000000cb3ff000000000000010cf00"
        "00010000000000a768616e646f666692cb3fe0000000000000cb3ff8000000000000a9707265656d7074656491cb3ff00000"
        "00000000ab66697273745f746f6b656ecb3fe0000000000000aa6c6173745f746f6b656ecb4000000000000000"
    ),
}
TIMES_SHORTEST = {
    "attempt_times": (
        "86a174ad617474656d70745f74696d6573a673656e646572a26434a87265636569766572a27078aa726571756573745f6964"
        "a172a7617474656d707401a3616765cb4000000000000000"
    ),
}
