# SPDX-License-Identifier: Apache-2.0
from pontil.runtime.wire.messages import Submit
from pontil.runtime.worker.links.log_fields import about


def test_a_log_line_names_the_trace_of_its_request_if_it_has_one() -> None:
    def fields(traceparent: str | None) -> dict[str, str]:
        return about(Submit("p", "w", "r-1", 0, [1], {}, traceparent=traceparent))

    traced = fields("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    assert traced == {"request": "r-1", "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736"}
    assert fields(None) == fields("nonsense") == {"request": "r-1"}
