# SPDX-License-Identifier: Apache-2.0
"""Workers on the second device, and what the driver of the devices that are not there refuses."""

from collections.abc import Iterator
from functools import partial
from threading import Thread
from typing import cast

import pytest
import torch
from pretend_device import PretendDevice
from strict_driver import DriverFault
from tiny import build, layout_of, reference, sequence

from pontil.gpu_ops.attention_backends.backend import AttentionBackend
from pontil.gpu_ops.triton.launch import launch
from pontil.runtime.cache.device_memory import CudaMemory, LoadedRuntime
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.engine.device.device_runner import DeviceRunner
from pontil.runtime.engine.device.link import CudaLink
from pontil.runtime.engine.device.step_buffer import StepBuffer
from pontil.runtime.engine.device.tile_forward import DeviceLimits
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.prompt_turns import StepBudget
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.worker.start.loading import open_device


@pytest.fixture
def there() -> Iterator[PretendDevice]:
    with PretendDevice(1) as made:
        yield made


def config(device: str) -> WorkerConfig:
    return WorkerConfig("w", "mixed", device, (0,), "m", "m", "ipc:///c", "ipc:///p")


def engine_on(there: PretendDevice) -> tuple[Engine, DeviceRunner]:
    """An engine as a worker makes it once its device is open."""
    model = build(reference(), device=str(there.device))
    layout = layout_of(model)
    storage = KVStorage(layout, 60, there.device)
    limits = DeviceLimits(8 + 32, 64, layout.blocks_for(model.config.max_model_len))
    runner = DeviceRunner(model, storage, CudaLink(there.device), limits, AttentionBackend())
    return Engine(runner, Scheduler(BlockPool(60), layout, 8, StepBudget(64))), runner


def run(engine: Engine) -> list[int]:
    one = sequence("a", [3] * 20, 5, logprobs=2)
    engine.add(one)
    while engine.has_work:
        engine.step()
    return one.output


def test_a_worker_computes_on_the_device_that_it_was_given(there: PretendDevice) -> None:
    """Its results are read once they have arrived: what has not is no token."""
    open_device(config("pretend:1"))
    engine, runner = engine_on(there)
    assert run(engine) == [0] * 5
    runner.record(runner.layers.shapes[-3:])
    assert run(engine) == [0] * 5 and there.driver.replays == 4


def test_a_device_that_is_not_the_current_one_is_refused(there: PretendDevice) -> None:
    engine, _ = engine_on(there)
    with pytest.raises(DriverFault, match="started on pretend:0 with a tensor of pretend:1"):
        run(engine)


def test_a_recording_is_of_the_current_device(there: PretendDevice) -> None:
    ones = torch.ones(4, device=there.device)
    with pytest.raises(DriverFault, match="while a step of pretend:0 is recorded"):
        CudaLink(there.device).capture(lambda: ones + 1, None)
    open_device(config("pretend:1"))
    recording = CudaLink(there.device).capture(lambda: ones + 1, None)
    there.driver.set_device(0)
    with pytest.raises(DriverFault, match="recorded on pretend:1 is started on pretend:0"):
        recording.replay()


def test_a_recording_refuses_what_a_graph_cannot_hold(there: PretendDevice) -> None:
    open_device(config("pretend:1"))
    link = CudaLink(there.device)
    ones, host = torch.ones(4, device=there.device), torch.zeros(4)
    memory = CudaMemory(there.device)

    def recorded(call: object) -> None:
        link.capture(lambda: (call(), ones + 1)[1], None)  # type: ignore[operator]

    with pytest.raises(DriverFault, match="not pinned"):
        recorded(lambda: ones.copy_(host))
    with pytest.raises(DriverFault, match="waiting for the device"):
        recorded(link.settle)
    with pytest.raises(DriverFault, match="taking memory"):
        recorded(partial(memory.allocate, 64))


def test_threads_beside_a_recording_do_as_they_like(there: PretendDevice) -> None:
    """Peers' blocks are opened, copied and digested beside it, and a library looks after its collectives."""
    open_device(config("pretend:1"))
    link, memory = CudaLink(there.device), CudaMemory(there.device)
    pool, mark, ones = memory.allocate(64), memory.mark(), torch.ones(4, device=there.device)
    done = list[int]()

    def work() -> None:
        with there, memory.after(mark):
            pool.cpu()
            memory.close(memory.open(memory.export(pool), 64))
            memory.allocate(64)
            done.append(1)

    def run() -> torch.Tensor:
        thread = Thread(target=work)
        thread.start()
        thread.join()
        return ones + 1

    link.capture(run, None)
    assert len(done) == 2


def test_a_recording_that_refuses_other_threads_is_told(there: PretendDevice) -> None:
    """The mode of a recording that names none."""
    open_device(config("pretend:1"))
    told = list[str]()

    def work() -> None:
        try:
            CudaLink(there.device).settle()
        except DriverFault as fault:
            told.append(str(fault))

    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        thread = Thread(target=work)
        thread.start()
        thread.join()
    assert told == ["waiting for the device in a thread while another one records a step, which is invalid then"]


def test_a_recorded_step_whose_memory_is_gone_is_refused(there: PretendDevice) -> None:
    open_device(config("pretend:1"))
    held = [torch.ones(4, device=there.device)]
    recording = CudaLink(there.device).capture(lambda: held[0] + 1, None)
    recording.replay()
    held.clear()
    with pytest.raises(DriverFault, match="given back"):
        recording.replay()


def test_streams_have_no_order_without_an_event(there: PretendDevice) -> None:
    open_device(config("pretend:1"))
    ones = torch.ones(4, device=there.device)
    side = torch.cuda.Stream(there.device)
    with pytest.raises(DriverFault, match="reads what stream"), torch.cuda.stream(side):
        ones.sum()
    side.wait_stream(torch.cuda.current_stream(there.device))
    with torch.cuda.stream(side):
        ones.sum()
    with pytest.raises(DriverFault, match="writes to what stream"):
        ones.add_(1)
    torch.cuda.current_stream(there.device).wait_stream(side)
    ones.add_(1)


def test_an_event_of_another_device_covers_nothing(there: PretendDevice) -> None:
    """Results that are read behind an event of the first device have not arrived."""
    link = CudaLink(there.device)
    words = torch.zeros(4, dtype=torch.int32, device=there.device)
    target = link.host_words(4)
    target.tensor.copy_(words, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    assert event.query()
    assert (target.words < 0).all()
    assert link.fetch(words, target).wait().tolist() == [0] * 4
    with pytest.raises(DriverFault, match="an event of pretend:0 is recorded on stream 1 of pretend:1"):
        event.record(torch.cuda.current_stream(there.device))


def test_host_memory_is_not_written_while_it_is_copied(there: PretendDevice) -> None:
    open_device(config("pretend:1"))
    link = CudaLink(there.device)
    buffer = StepBuffer(link, 16)
    sections = [torch.arange(3, dtype=torch.int32).numpy()]
    for _ in buffer.hosts:
        buffer.send(sections)
    with pytest.raises(DriverFault, match="the host writes to memory that stream"):
        buffer.send(sections)
    link.settle()
    buffer.send(sections)


def test_memory_runs_out_and_comes_back(there: PretendDevice) -> None:
    open_device(config("pretend:1"))
    there.room.most = 1 << 20
    held = [torch.zeros(3 << 18, dtype=torch.uint8, device=there.device)]
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(1 << 19, dtype=torch.uint8, device=there.device)
    with pytest.raises(MemoryError, match="1 MiB of KV memory cannot be had on pretend:1"):
        CudaMemory(there.device).allocate(1 << 20)
    # The other device has its own.
    CudaMemory(torch.device("pretend:0")).allocate(1 << 20)
    held.clear()
    torch.zeros(1 << 19, dtype=torch.uint8, device=there.device)


def test_a_pool_is_given_back_whole(there: PretendDevice) -> None:
    before = there.room.taken()
    memory = CudaMemory(there.device)
    own = memory.allocate(1 << 20)
    handle = memory.export(own.view(4, -1).view(-1))
    assert there.room.taken() == before + (1 << 20)
    opened = memory.open(handle, 1 << 20)
    CudaLink(there.device).settle()
    memory.close(opened)
    memory.free(own)
    del own, opened
    assert there.room.taken() == before
    with pytest.raises(OSError, match="gone"):
        memory.open(handle, 1 << 20)


def test_memory_of_another_device_is_read_where_it_was_opened(there: PretendDevice) -> None:
    """Its owner is a process with the first device. A thread of ours begins with that one, too."""
    theirs = CudaMemory(torch.device("pretend:0"))
    handle = theirs.export(theirs.allocate(64))
    memory = CudaMemory(there.device)
    own = memory.allocate(64)
    opened = memory.open(handle, 64)
    with memory.after(memory.mark()):
        own.copy_(opened)
    memory.close(opened)
    pointer = memory.runtime.open(handle)
    with pytest.raises(DriverFault, match="memory that pretend:0 has taken or opened is used by pretend:1"):
        memory.runtime.tensor(pointer, 64, there.device)


def test_memory_of_an_address_is_no_copy() -> None:
    """For torch, memory of another GPU belongs to that one, and would be copied to ours as a whole."""
    theirs = torch.arange(16, dtype=torch.uint8)
    opened = LoadedRuntime.tensor(cast(LoadedRuntime, None), theirs.data_ptr(), 8, torch.device("cpu"))
    theirs[3] = 99
    assert opened.tolist() == [0, 1, 2, 99, 4, 5, 6, 7] and opened.data_ptr() == theirs.data_ptr()


def test_memory_is_not_unmapped_under_a_copy(there: PretendDevice) -> None:
    open_device(config("pretend:1"))
    memory = CudaMemory(there.device)
    opened = memory.open(memory.export(memory.allocate(64)), 64)
    target = torch.zeros(64, dtype=torch.uint8, device=there.device)
    mark = memory.mark()
    with pytest.raises(DriverFault, match="given back"), torch.cuda.stream(memory.side):
        memory.side.wait_event(mark.event)
        target.copy_(opened)
        memory.close(opened)


def test_an_opened_handle_ends_before_the_memory_of_its_owner(there: PretendDevice) -> None:
    open_device(config("pretend:1"))
    memory = CudaMemory(there.device)
    own = memory.allocate(64)
    opened = memory.open(memory.export(own), 64)
    with pytest.raises(DriverFault, match="that another process has open"):
        memory.free(own)
    with pytest.raises(DriverFault, match="not taken here"):
        memory.free(opened)
    memory.close(opened)
    with pytest.raises(DriverFault, match="given back"):
        opened.sum()
    with pytest.raises(DriverFault, match="not open"):
        memory.close(opened)
    memory.free(own)


def test_what_a_fault_left_on_the_side_has_ended(there: PretendDevice) -> None:
    memory = CudaMemory(there.device)
    own = memory.open(memory.export(memory.allocate(64)), 64)
    target = torch.zeros(64, dtype=torch.uint8, device=there.device)
    with pytest.raises(KeyError), memory.after(memory.mark()):
        target.copy_(own)
        raise KeyError
    memory.close(own)
    target.add_(1)


def test_a_thread_beside_the_steps_computes_on_the_device_of_the_pool(there: PretendDevice) -> None:
    """A new thread's current device is the first one."""
    memory = CudaMemory(there.device)
    own, mark = memory.allocate(64), memory.mark()
    begun: list[str] = []

    def work() -> None:
        with there, memory.after(mark):
            launch("digest", (1,), own)
            begun.append(str(there.driver.current_device()))

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert begun == ["pretend:1"] and str(there.driver.current_device()) == "pretend:0"
