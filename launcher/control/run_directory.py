# SPDX-License-Identifier: Apache-2.0
"""The run directory: it holds the sockets of one launch, is private to the user and is removed when the launch ends."""

import fcntl
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.foundation.held_devices import HeldDevices, read_held

LOCK = "lock"
CONTROL = "control"


class RunDirectory:
    """The directory `<base>/<launcher's pid>`, mode 0700, with a lock file that is locked exactly as long as its
    launcher lives.

    A directory whose lock can be taken belongs to a dead launcher, even if its pid was reused; each launch removes
    those it finds. The base's own lock keeps a directory from being judged between its creation and its locking, and
    devices from being taken by two launches at once: who has it sees what each living launch has stated (`hold`).

    `<base>/control` points to the control socket of one running launch, the first with a proxy: `elsewhere` is the run
    directory of that one if it is not this launch.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.path = directory_of(base, os.getpid())
        self.lock: int | None = None
        self.elsewhere: Path | None = None

    def create(self, controls: Sequence[Path] = ()) -> None:
        """Make it. `controls` are the socket files at which the proxies of this launch will listen."""
        try:
            self.base.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.check_base()
            with self.guarded():
                self.remove_dead()
                self.path.mkdir(mode=0o700)
                self.lock = take_lock(self.path / LOCK, wait=False)
                self.offer(controls)
        except OSError as error:
            raise self.unusable(error) from error

    def unusable(self, error: OSError) -> LaunchError:
        return LaunchError(
            f"The run directory {self.path} cannot be used ({error.strerror}): set XDG_RUNTIME_DIR to one of yours."
        )

    @contextmanager
    def guarded(self, *, wait: bool = True) -> Iterator[None]:
        """Hold the base's lock."""
        guard = take_lock(self.base / f".{LOCK}", wait=wait)
        if guard is None:
            raise LaunchError("Another launch takes devices of this host at this moment: try again.")
        try:
            yield
        finally:
            os.close(guard)

    @contextmanager
    def others(self, *, wait: bool = True) -> Iterator[HeldDevices]:
        """Hold the base's lock, and yield what other launches that live have. Raises LaunchError where that cannot be
        known, or another launch has the lock and this one does not `wait`."""
        if not is_own_folder(self.base):
            yield HeldDevices()
            return
        with ExitStack() as stack:
            try:
                stack.enter_context(self.guarded(wait=wait))
                held_devices = read_held(folder for folder in self.folders if folder != self.path and lives(folder))
            except OSError as error:
                raise self.unusable(error) from error
            yield held_devices

    def hold(self, devices: HeldDevices) -> list[str]:
        """State for others what this launch has, within `others` if it is more than before. Return messages for the
        log."""
        if self.lock is None:
            return []
        try:
            devices.write(self.path)
        except OSError as error:
            return [f"{self.path} takes no more files ({error.strerror}): other launches may take devices of this one"]
        return []

    def check_base(self) -> None:
        """Check who owns the base. In a shared /tmp another user may have made it first, and could then swap the
        sockets in it."""
        if not is_own_folder(self.base):
            raise LaunchError(f"{self.base} belongs to somebody else: set XDG_RUNTIME_DIR to a folder of yours.")
        if self.base.stat().st_mode & 0o077:
            self.base.chmod(0o700)

    def offer(self, controls: Sequence[Path]) -> None:
        """Point the default sockets, one for each proxy, to this launch, unless another launch has them. A dead
        launch's links have just been removed."""
        for number, control in enumerate(controls):
            usual, own_socket = usual_socket(self.base, number), usual_socket(self.path, number)
            if control != own_socket:
                own_socket.symlink_to(control)
            if self.elsewhere is None and usual.is_symlink():
                self.elsewhere = self.base / usual.readlink().parent
            if self.elsewhere is None:
                fresh = self.path / "usual"
                fresh.symlink_to(own_socket.relative_to(self.base))
                fresh.replace(usual)

    def withdraw(self) -> None:
        """Remove the default sockets that are ours. No other launch can have taken one: our directory still exists and
        is locked."""
        for usual in self.usual_links:
            if usual.parent / usual.readlink().parent == self.path:
                usual.unlink()

    @property
    def usual_links(self) -> list[Path]:
        return [link for link in self.base.glob(f"{CONTROL}*") if link.is_symlink()]

    @property
    def folders(self) -> list[Path]:
        """The run directories of this base."""
        return [folder for folder in self.base.iterdir() if folder.name.isdigit() and folder.is_dir()]

    def remove_dead(self) -> None:
        for folder in self.folders:
            if not lives(folder):
                shutil.rmtree(folder, ignore_errors=True)
        for usual in self.usual_links:
            if not (self.base / usual.readlink().parent).is_dir():
                usual.unlink()

    def remove(self) -> None:
        if self.lock is not None:
            with suppress(OSError):
                self.withdraw()
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self.lock)
            self.lock = None


def usual_socket(folder: Path, number: int = 0) -> Path:
    """Return the path of a proxy's control socket in the run directories' base, or in one launch's directory."""
    return folder / (f"{CONTROL}-{number}" if number else CONTROL)


def directory_of(base: Path, launcher: int) -> Path:
    return base / str(launcher)


def is_own_folder(path: Path) -> bool:
    try:
        about = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()


def lives(folder: Path) -> bool:
    """Return whether the launcher of a run directory lives, for one who has the base's lock."""
    try:
        lock = take_lock(folder / LOCK, wait=False)
    except FileNotFoundError:
        # The launcher of that directory has just removed it.
        return False
    if lock is not None:
        os.close(lock)
    return lock is None


def take_lock(path: Path, *, wait: bool) -> int | None:
    """Return an open descriptor that holds the lock until it is closed or its process ends; None if another process
    holds it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
