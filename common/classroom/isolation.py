"""Runs a program that nobody vouches for: with limits on what it can take, and, where the machine lets us, out of sight
of all that is not its own.

Three ways, the strongest first; the first that works here is used, and reports say which it was:

    bubblewrap as root   own processes, network and files (Linux namespaces), a user id of its own
    bubblewrap           the same with the id of the user who grades, in a user namespace
    limits alone         limits and a process group; as root also a user id of its own
"""

from __future__ import annotations

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

USERS = range(30000, 60000)  # user ids, of which each grader takes as many, in a row, as nobody has
MOST_SLOTS = 64
MEBIBYTE = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
END_SECONDS = 20  # for processes that were ended to be gone
LOOKS = 3  # in a row that find nothing, before an ordinary user takes it that nothing is left
LOOK_SECONDS = 0.02  # between two of them
OUTPUT_BYTES = 4 * MEBIBYTE  # of what a program prints; more ends it
SHOWN_BYTES = 6000  # of it, that is kept
GPU_DEVICES = ("nvidia*", "dxg")  # the latter in WSL2
OF_DRIVER = ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")  # what a program may need to find the driver, and a GPU
SYSTEM_FOLDERS = ("bin", "sbin", "lib", "lib64", "lib32")


@dataclass(frozen=True)
class Limits:
    """Of one run."""

    cpu_seconds: int
    wall_seconds: float
    memory_bytes: int  # of data, for each process; and in memory, for all together
    reserved_bytes: int = 0  # of addresses, beside that: a counting program reserves some without using them
    file_bytes: int = 256 * MEBIBYTE  # for each file
    temporary_bytes: int = 256 * MEBIBYTE  # of all in /tmp; bubblewrap only
    processes: int = 64  # and threads


@dataclass(frozen=True)
class Outcome:
    """What became of a run."""

    code: int | None  # None: it was ended by a signal
    signal: int | None
    timed_out: bool
    stopped_for: str  # "memory" or "output" where it was ended for that; else empty
    output: str  # the end of both streams
    seconds: float


@dataclass(frozen=True)
class Way:
    """How programs are kept apart here."""

    name: str  # "bubblewrap" or "limits alone"
    as_root: bool
    note: str  # for the reports
    warning: str = ""  # for the teacher: what does not hold here

    @property
    def has_namespaces(self) -> bool:
        return self.name == "bubblewrap"


class Cancelled(Exception):
    """The grader was told to stop."""


class Sandbox:
    """Runs commands, each in a slot (a number); two at the same time have different slots."""

    def __init__(self, wanted: str = "auto") -> None:
        """`wanted`: auto, bubblewrap or limits. Raises ValueError where that cannot be had."""
        self._lock = threading.Lock()
        self._running: set[int] = set()
        self.cancelled = threading.Event()
        as_root = os.geteuid() == 0
        self._held: socket.socket | None = None
        self._first_user = self._take_users() if as_root else 0
        self._bubblewrap = shutil.which("bwrap")
        filtered = "Its system calls were filtered: it could open no file and start no program or process."
        sealed = Way(
            "bubblewrap", as_root,
            "Each program ran in namespaces of its own (bubblewrap): it saw no other process, no network and no file "
            f"but its own. {filtered}",
        )
        why = "bubblewrap is not installed" if self._bubblewrap is None else f"{self._bubblewrap} does not work here"
        bare = Way(
            "limits alone", as_root,
            f"There were no namespaces here: each program ran with limits{' and a user id of its slot' * as_root}. "
            f"{filtered}",
            (
                f"{why if wanted != 'limits' else 'limits alone were asked for'}, so programs run without namespaces. "
                "Their system calls are filtered; the compiler's are not"
                + (", but it has a user id of its own." if as_root else ", and it can read what you can read.")
            ),
        )
        if wanted == "limits":
            self.way = bare
        elif self._works(sealed):
            self.way = sealed
        elif wanted == "auto":
            self.way = bare
        else:
            raise ValueError(
                "bubblewrap cannot be used here: it is not installed (the package is called bubblewrap), or this "
                "machine allows no namespaces"
            )

    def _works(self, way: Way) -> bool:
        if self._bubblewrap is None:
            return False
        self.way = way
        trial = Limits(5, 10, 512 * MEBIBYTE)
        work = Path("/tmp")
        command = self._command(["true"], 0, trial, work, (), ())
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def _take_users(self) -> int:
        """The first of MOST_SLOTS user ids that no user and no other grader of this machine has. They are held by the
        name of a socket, which ends with this process."""
        taken = {entry.pw_uid for entry in pwd.getpwall()}
        for pid in processes():
            try:
                taken.add(os.stat(f"/proc/{pid}").st_uid)
            except OSError:
                pass
        starts = list(range(USERS.start, USERS.stop - MOST_SLOTS + 1, MOST_SLOTS))
        random.shuffle(starts)
        for first in starts:
            if not taken.isdisjoint(range(first, first + MOST_SLOTS)):
                continue
            held = socket.socket(socket.AF_UNIX)
            try:
                held.bind(f"\0worklog-grade-{first}")
            except OSError:
                held.close()
                continue
            self._held = held
            return first
        raise ValueError(f"no {MOST_SLOTS} user ids from {USERS.start} to {USERS.stop} are free")

    @property
    def users(self) -> list[int]:
        """The user ids that programs run with here; none where they have the grader's own."""
        return [self._first_user, self._first_user + MOST_SLOTS] if self.way.as_root else []

    def user_of(self, slot: int) -> int | None:
        """The user id that a slot's programs run with; None: the grader's own."""
        return self._first_user + slot % MOST_SLOTS if self.way.as_root else None

    def give(self, path: Path, slot: int) -> None:
        """Makes a file or folder the slot's own."""
        if (user := self.user_of(slot)) is not None:
            os.chown(path, user, user)

    def run(
        self, command: Sequence[str], slot: int, limits: Limits, folder: Path, readable: Sequence[Path] = (),
        writable: Sequence[Path] = (), environment: dict[str, str] | None = None, output: Path | None = None,
        gpu: bool = False,
    ) -> Outcome:
        """Runs a command in `folder`. With namespaces it sees the system's programs and libraries, `readable` and
        `writable`; with `gpu` NVIDIA's devices, too.

        All that it has started has ended when this returns; with limits alone an ordinary user can miss what starts
        itself anew without a pause. `output` is a file of the grader's for what it prints. Raises Cancelled."""
        if self.cancelled.is_set():
            raise Cancelled
        target = output or folder.with_suffix(".output")
        token = f"{os.getpid()}-{slot}-{time.monotonic_ns()}"
        begun = time.monotonic()
        settings = {
            "PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/tmp", "TMPDIR": "/tmp",
            "WORKLOG_SANDBOX": token, **(environment or {}),
        }
        if gpu:
            settings |= {name: os.environ[name] for name in OF_DRIVER if name in os.environ}
        if not self.way.has_namespaces:  # nvcc can do with no folder that it cannot write to
            own = next((path for path in writable if path.is_dir()), folder)
            settings["TMPDIR"] = settings["HOME"] = str(own)
        with target.open("wb") as sink:
            process = subprocess.Popen(
                self._command(command, slot, limits, folder, readable, writable, gpu), stdin=subprocess.DEVNULL,
                stdout=sink, stderr=subprocess.STDOUT, env=settings, start_new_session=True,
                cwd="/" if self.way.has_namespaces else folder,
            )
        with self._lock:
            self._running.add(process.pid)
        timed_out, stopped_for = False, ""
        try:
            while process.poll() is None:
                left = begun + limits.wall_seconds - time.monotonic()
                if self.cancelled.is_set():
                    raise Cancelled
                if target.stat().st_size > OUTPUT_BYTES:
                    stopped_for = "output"
                elif sum(below(process.pid).values()) > limits.memory_bytes:
                    stopped_for = "memory"
                timed_out = left <= 0
                if timed_out or stopped_for:
                    break
                try:
                    process.wait(min(left, 0.1))
                except subprocess.TimeoutExpired:
                    pass
        finally:
            known = set(below(process.pid)) - {process.pid}
            end_group(process.pid)
            process.wait()
            self._end_others(slot, token, known)
            with self._lock:
                self._running.discard(process.pid)
        text = tail_of(target)
        code = process.returncode
        ended_by = None
        if code < 0:
            ended_by = -code
        elif self.way.has_namespaces and 128 < code <= 128 + signal.NSIG:
            ended_by = code - 128
        timed_out = timed_out or ended_by == signal.SIGXCPU
        return Outcome(
            None if ended_by else code, None if timed_out else ended_by, timed_out, stopped_for, text,
            time.monotonic() - begun,
        )

    def stop(self) -> None:
        """Ends all that runs. Every run that is under way, or begins later, raises Cancelled."""
        self.cancelled.set()
        with self._lock:
            for group in self._running:
                end_group(group)

    def _end_others(self, slot: int, token: str, known: set[int]) -> None:
        """Waits for the end of all that a run has started; without namespaces, ends what has left its process group.

        A process that starts another and ends, while the list of processes is read, hides that other: it is not yet in
        the list, and its parent is gone when looked at. So as root the end comes before the look, and for all of the
        user's at once, which no start of a process slips through; and an ordinary user looks until nothing was found
        several times."""
        user = self.user_of(slot)
        deadline = time.monotonic() + END_SECONDS
        looks = LOOKS if user is None and not self.way.has_namespaces else 1
        while looks > 0 and time.monotonic() < deadline:
            if not self.way.has_namespaces and user is not None:
                as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
                subprocess.run([*as_user, "sh", "-c", "kill -9 -1"], capture_output=True, check=False)
            found = {pid for pid in processes() if is_alive(pid) and (pid in known or belongs(pid, user, token))}
            if not found:
                looks -= 1
            elif not self.way.has_namespaces and user is None:
                looks = LOOKS
                for pid in found:
                    end_group_of(pid)
            if looks > 0:
                time.sleep(LOOK_SECONDS)

    def _command(
        self, command: Sequence[str], slot: int, limits: Limits, folder: Path, readable: Sequence[Path],
        writable: Sequence[Path], gpu: bool = False,
    ) -> list[str]:
        user = self.user_of(slot)
        become = []
        if user is not None:
            become += ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
            become += ["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
        # An ordinary user's processes are counted together: those of another grader that begins meanwhile, too.
        processes_allowed = limits.processes if user is not None else 8 * limits.processes + own_processes()
        limit = [
            "prlimit", "--core=0", f"--cpu={limits.cpu_seconds}:{limits.cpu_seconds + 2}",
            f"--data={limits.memory_bytes + limits.reserved_bytes}", f"--fsize={limits.file_bytes}",
            f"--nproc={processes_allowed}", "--nofile=256", "--",
        ]
        if not self.way.has_namespaces:
            return [*(become or ["setpriv", "--no-new-privs"]), "--pdeathsig=KILL", *limit, *command]
        words = [
            "setpriv", "--pdeathsig=KILL", str(self._bubblewrap), "--die-with-parent", "--unshare-pid", "--unshare-net",
            "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--new-session",
        ]
        words += ["--cap-drop", "ALL"]
        if user is not None:
            for capability in ("SETUID", "SETGID", "SETPCAP"):
                words += ["--cap-add", f"CAP_{capability}"]
        else:
            words += ["--unshare-user"]
        words += ["--ro-bind", "/usr", "/usr"]
        for name in SYSTEM_FOLDERS:
            path = Path("/", name)
            if path.is_symlink():
                words += ["--symlink", os.readlink(path), str(path)]
            elif path.is_dir():
                words += ["--ro-bind", str(path), str(path)]
        words += ["--perms", "0755", "--dir", "/etc"]
        for name in ("ld.so.cache", "alternatives"):
            words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        words += ["--proc", "/proc", "--dev", "/dev"]
        if gpu:
            for device in sorted(path for name in GPU_DEVICES for path in Path("/dev").glob(name)):
                words += ["--dev-bind", str(device), str(device)]
            words += ["--ro-bind-try", "/sys", "/sys"]
            for library_folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
                if library_folder.startswith("/") and not Path(library_folder).is_relative_to("/usr"):
                    words += ["--ro-bind-try", library_folder, library_folder]
        words += ["--size", str(limits.temporary_bytes), "--perms", "1777", "--tmpfs", "/tmp"]
        above = {parent for path in (*readable, *writable) for parent in path.parents}
        above -= {Path("/"), Path("/tmp"), Path("/usr")}
        for parent in sorted(above - set(readable) - set(writable)):  # bubblewrap would make them for root alone
            words += ["--perms", "0755", "--dir", str(parent)]
        for path in readable:
            words += ["--ro-bind", str(path), str(path)]
        for path in writable:
            words += ["--bind", str(path), str(path)]
        if any(folder == path or folder.is_relative_to(path) for path in (*readable, *writable)):
            words += ["--chdir", str(folder)]
        else:
            words += ["--chdir", "/tmp"]
        return [*words, "--", *become, *limit, *command]


def end_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def end_group_of(pid: int) -> None:
    """Ends a process and its group: one that starts another and ends could be gone before its own end comes."""
    try:
        group = os.getpgid(pid)
        if group != os.getpgrp():
            end_group(group)
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def belongs(pid: int, user: int | None, token: str) -> bool:
    """Whether a process runs with a slot's user id, or, without one, was started in this run."""
    try:
        if user is not None:
            return os.stat(f"/proc/{pid}").st_uid == user
        return f"WORKLOG_SANDBOX={token}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def below(first: int) -> dict[int, int]:
    """A process and all below it: their bytes in memory."""
    parents, resident = {}, {}
    for pid in processes():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        parents[pid], resident[pid] = int(fields[1]), int(fields[21]) * PAGE

    def is_below(pid: int) -> bool:
        while pid > 1 and pid != first:
            pid = parents.get(pid, 0)
        return pid == first

    return {pid: size for pid, size in resident.items() if is_below(pid)}


def is_alive(pid: int) -> bool:
    """Whether a process is there, and not just waited for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def own_processes() -> int:
    """Processes and threads of this user: its limit counts them all."""
    count = 0
    for pid in processes():
        try:
            if os.stat(f"/proc/{pid}").st_uid == os.geteuid():
                count += len(os.listdir(f"/proc/{pid}/task"))
        except OSError:
            pass
    return count


def tail_of(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - SHOWN_BYTES))
        return file.read(SHOWN_BYTES).decode(errors="replace")
