# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.launcher.host.device_list import MAX_RANKS, DeviceItem, RankDevice, parse_list


def gpus(*numbers: int) -> DeviceItem:
    return DeviceItem(tuple(RankDevice(gpu=number) for number in numbers))


def cores(*ranks: tuple[int, ...]) -> DeviceItem:
    return DeviceItem(tuple(RankDevice(cores=rank) for rank in ranks))


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("0", (gpus(0),)),
        ("cuda:1", (gpus(1),)),
        ("0+1", (gpus(0, 1),)),
        ("cuda:3+2,cuda:0", (gpus(3, 2), gpus(0))),
        ("0, 1", (gpus(0), gpus(1))),
        ("cpu", (DeviceItem(),)),
        ("cpu*3", (DeviceItem(),) * 3),
        ("cpu:0-3", (cores((0, 1, 2, 3)),)),
        ("cpu:5,cpu", (cores((5,)), DeviceItem())),
        ("cpu:0+cpu:1", (cores((0,), (1,)),)),
        ("cpu:0-1+cpu:2-3,cpu", (cores((0, 1), (2, 3)), DeviceItem())),
        ("cpu:0+cpu:0", (cores((0,), (0,)),)),
        ("cpu+cpu", (DeviceItem((RankDevice(),) * 2),)),
        ("none", ()),
    ],
)
def test_lists_are_read(text: str, items: tuple[DeviceItem, ...]) -> None:
    assert parse_list(text) == items


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "0,",
        "gpu",
        "cpu*0",
        "cpu:3-1",
        "0+0",
        "0+",
        "+1",
        "cpu+",
        "-1",
        "cuda:",
        "cpu:",
        "1.5",
        "²",
    ],
)
def test_other_lists_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must|may"):
        parse_list(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0+0", "GPU 0 once"),
        ("cuda:1+1", "GPU 1 once"),
        ("cpu:0+1", "may not join cores and GPUs in one worker"),
        ("0+cpu", "may not join cores and GPUs"),
        ("cpu:0+cpu", "cores of every rank"),
        ("cpu*2+cpu", r"may not join cpu\*N"),
        ("+".join(map(str, range(MAX_RANKS + 1))), f"at most {MAX_RANKS} devices"),
    ],
)
def test_ranks_that_cannot_be_one_worker_are_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_list(text)


@given(st.text(alphabet="cpuda:*-+,0129 none", max_size=30))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    try:
        items = parse_list(text)
    except ValueError as error:
        assert str(error)
    else:
        assert all(len(item.gpus) in (0, len(item.ranks)) and item.plain in (0, len(item.ranks)) for item in items)
        assert parse_list(",".join(map(str, items)) or "none") == items
